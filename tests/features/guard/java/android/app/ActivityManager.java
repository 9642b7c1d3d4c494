package android.app;

import java.util.ArrayList;
import java.util.List;

public class ActivityManager {
    /** The property "ended": process, reason, status and milliseconds of the process before this one. */
    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int most) {
        List<ApplicationExitInfo> endings = new ArrayList<>();
        String[] words = System.getProperty("ended", "").split(",");
        if (words.length == 4 && Integer.parseInt(words[0]) == pid) {
            endings.add(new ApplicationExitInfo(
                    Integer.parseInt(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3])));
        }
        return endings;
    }

    public boolean isLowRamDevice() {
        return Boolean.getBoolean("low_ram");
    }
}
