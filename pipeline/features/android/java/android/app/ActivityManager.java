package android.app;

import java.util.List;

public class ActivityManager {
    public native List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int most);

    public native boolean isLowRamDevice();
}
