import android.content.Context;
import com.example.demo.Guard;
import com.example.demo.M;
import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/** One launch of an app: it opens the model, runs it, and perhaps waits for the trials. What it says is for tests. */
public class App {
    public static void main(String[] arguments) throws Exception {
        Guard.listen(event -> say("event " + event.json()));
        Context context = new Context();
        int runs = Integer.getInteger("runs", 3);
        if (Boolean.getBoolean("reset")) {
            Guard.reset(context);
        }
        com.example.demo.Limits.set(
                Long.getLong("limit", 20_000), Integer.getInteger("noise", -1), Long.getLong("child_limits", 0));
        String list = System.getProperty("deny", "");
        if (!list.isEmpty()) {
            try {
                Guard.deny(context, Files.readAllBytes(Path.of(list)));
                say("denied");
            } catch (IOException refused) {
                say("refused " + refused.getMessage());
            }
        }
        long start = System.nanoTime();
        M model = Boolean.getBoolean("now") ? M.openNow(context) : M.open(context);
        say("way " + model.way());
        say("ms " + (System.nanoTime() - start) / 1_000_000);
        for (int i = 0; i < runs; i++) {
            try (M.Result result = model.run(FloatBuffer.allocate(64))) {
                FloatBuffer values = result.y();
                double sum = 0;
                while (values.hasRemaining()) {
                    sum += values.get();
                }
                say("sum " + sum);
            }
        }
        if (Boolean.getBoolean("wait")) {
            say("choice " + M.prepare(context).get(120, TimeUnit.SECONDS).way());
        }
        say("skipped " + model.skipped());
        model.close();
        say("end");
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
