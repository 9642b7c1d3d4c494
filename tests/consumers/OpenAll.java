import android.content.Context;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.annotation.Config;

/** Opens the model of each package by its class, all in one app, and runs it on ones: asset and an output a line. */
@RunWith(RobolectricTestRunner.class)
@Config(sdk = 35)
public class OpenAll {
    @Test
    public void opens() throws Exception {
        Context context = RuntimeEnvironment.getApplication();
        float[] ones = new float[64];
        Arrays.fill(ones, 1f);
        StringBuilder said = new StringBuilder();
        for (String name : System.getProperty("classes").split(" ")) {
            Class<?> type = Class.forName(name);
            type.getMethod("verify", Context.class).invoke(null, context);
            try (AutoCloseable model = (AutoCloseable) type.getMethod("open", Context.class).invoke(null, context);
                    AutoCloseable result = (AutoCloseable) type.getMethod("run", FloatBuffer.class)
                            .invoke(model, FloatBuffer.wrap(ones))) {
                FloatBuffer y = (FloatBuffer) result.getClass().getMethod("y").invoke(result);
                said.append(type.getField("ASSET").get(null)).append(' ').append(y.get(64 + 9)).append('\n');
            }
        }
        Files.writeString(Path.of(System.getProperty("said")), said);
    }
}
