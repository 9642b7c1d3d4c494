package android.app;

import java.util.ArrayList;
import java.util.List;

public class ActivityManager {
    /** The property "ended": process, reason, status and milliseconds of each process before this one, the last first. */
    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int most) {
        List<ApplicationExitInfo> endings = new ArrayList<>();
        for (String record : System.getProperty("ended", "").split(";")) {
            String[] words = record.split(",");
            if (words.length == 4 && Integer.parseInt(words[0]) == pid && endings.size() < most) {
                endings.add(new ApplicationExitInfo(
                        Integer.parseInt(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3])));
            }
        }
        return endings;
    }

    public boolean isLowRamDevice() {
        return Boolean.getBoolean("low_ram");
    }
}
