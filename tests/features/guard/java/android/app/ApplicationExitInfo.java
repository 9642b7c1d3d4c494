package android.app;

public final class ApplicationExitInfo {
    public static final int REASON_EXIT_SELF = 1;
    public static final int REASON_SIGNALED = 2;
    public static final int REASON_LOW_MEMORY = 3;
    public static final int REASON_CRASH_NATIVE = 5;
    public static final int REASON_ANR = 6;

    private final int reason;
    private final int status;
    private final long timestamp;

    ApplicationExitInfo(int reason, int status, long timestamp) {
        this.reason = reason;
        this.status = status;
        this.timestamp = timestamp;
    }

    public int getReason() {
        return reason;
    }

    public int getStatus() {
        return status;
    }

    public long getTimestamp() {
        return timestamp;
    }
}
