import android.content.Context;
import android.content.res.AssetFileDescriptor;
import com.example.mnist_models.Mnist;
import java.io.File;
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
    /** The names of the model's copies. */
    private static String[] copies(Context context) {
        String[] names = new File(context.getNoBackupFilesDir(), Mnist.class.getName()).list();
        return names == null ? new String[0] : names;
    }

    /** Changes a byte of each copy, and adds that of an earlier version of the model. */
    private static void damage(Context context) throws Exception {
        File folder = new File(context.getNoBackupFilesDir(), Mnist.class.getName());
        for (String name : copies(context)) {
            Path copy = folder.toPath().resolve(name);
            byte[] content = Files.readAllBytes(copy);
            content[content.length / 2] ^= 1;
            Files.write(copy, content);
            Files.write(folder.toPath().resolve(name.replace("0", "1").replace("a", "b")), content);
        }
    }

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
            said.append('\n').append(String.join(" ", copies(context))).append('\n');
            damage(context);
        }
        Mnist.verify(context);
        Files.writeString(Path.of(System.getProperty("said")), said);
    }
}
