import android.content.Context;
import android.content.res.AssetFileDescriptor;
import com.example.mnist_models.Mnist;
import java.io.FileNotFoundException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.annotation.Config;

/** Opens the model from the assets of an app by Android's own AssetManager, and runs it on a recorded image. */
@RunWith(RobolectricTestRunner.class)
@Config(sdk = 35)
public class OnAndroid {
    @Test
    public void runs() throws Exception {
        Context context = RuntimeEnvironment.getApplication();
        StringBuilder said = new StringBuilder();
        try (AssetFileDescriptor asset = context.getAssets().openFd(Mnist.ASSET)) {
            said.append("stored ").append(asset.getDeclaredLength()).append('\n');
        } catch (FileNotFoundException compressed) {
            said.append("compressed\n");
        }
        byte[] image = Files.readAllBytes(Path.of(System.getProperty("image")));
        FloatBuffer pixels = ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer();
        for (int time = 0; time < 2; time++) {
            try (Mnist model = Mnist.open(context); Mnist.Result result = model.run(pixels)) {
                FloatBuffer logits = result.logits();
                said.append(model.way()).append('\n');
                while (logits.hasRemaining()) {
                    said.append(logits.get()).append(' ');
                }
            }
            said.append('\n').append(String.join(" ", context.getNoBackupFilesDir().list())).append('\n');
        }
        Files.writeString(Path.of(System.getProperty("said")), said);
    }
}
