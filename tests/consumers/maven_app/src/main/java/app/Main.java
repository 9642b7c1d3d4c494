package app;

import com.example.mnist_models.Mnist;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;

/** Runs the model on a recorded image and prints how it was opened, and the logits. */
public final class Main {
    private Main() {}

    static FloatBuffer floats(String path) throws IOException {
        return ByteBuffer.wrap(Files.readAllBytes(Paths.get(path))).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer();
    }

    public static void main(String[] arguments) throws Exception {
        try (Mnist model = Mnist.open(new File(arguments[0])); Mnist.Result result = model.run(floats(arguments[1]))) {
            StringBuilder line = new StringBuilder();
            for (FloatBuffer logits = result.logits(); logits.hasRemaining(); ) {
                line.append(logits.get()).append(' ');
            }
            System.out.println(model.way());
            System.out.println(line);
        }
        System.exit(0);
    }
}
