package android.os;

import java.util.List;

public class Build {
    public static final String FINGERPRINT = null;
    public static final String BOARD = null;
    public static final String HARDWARE = null;
    public static final String MODEL = null;
    public static final String SOC_MANUFACTURER = null;
    public static final String SOC_MODEL = null;
    public static final String[] SUPPORTED_ABIS = null;

    public static native List<Partition> getFingerprintedPartitions();

    public static class Partition {
        public native String getName();

        public native String getFingerprint();
    }

    public static class VERSION {
        public static final int SDK_INT = Integer.parseInt("0");
    }
}
