package android.app;

public final class ApplicationExitInfo {
    public static final int REASON_EXIT_SELF = 1;
    public static final int REASON_SIGNALED = 2;
    public static final int REASON_LOW_MEMORY = 3;
    public static final int REASON_CRASH_NATIVE = 5;
    public static final int REASON_ANR = 6;

    public native int getReason();

    public native int getStatus();

    public native long getTimestamp();
}
