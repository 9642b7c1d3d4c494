import com.android.tools.r8.R8;
import com.android.tools.r8.R8Command;
import com.android.tools.r8.origin.Origin;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** R8 once for each file of rules: rules, what to write, then what all have in common. */
public class Shrink {
    public static void main(String[] arguments) throws Exception {
        int pairs = Integer.parseInt(arguments[0]);
        List<String> common = Arrays.asList(arguments).subList(1 + 2 * pairs, arguments.length);
        for (int i = 0; i < pairs; i++) {
            List<String> command = new ArrayList<>(common);
            command.addAll(Arrays.asList("--pg-conf", arguments[1 + 2 * i], "--output", arguments[2 + 2 * i]));
            R8.run(R8Command.parse(command.toArray(new String[0]), Origin.root()).build());
        }
        System.exit(0);
    }
}
