package android.os;

import java.util.ArrayList;
import java.util.List;

public class Build {
    public static final String BOARD = "board";
    public static final String HARDWARE = "hardware";
    public static final String MODEL = "model";
    public static final String FINGERPRINT = System.getProperty("fingerprint", "maker/device:14/build");
    public static final String SOC_MANUFACTURER = "Maker";
    public static final String SOC_MODEL = "chip";
    public static final String[] SUPPORTED_ABIS = {"arm64-v8a"};

    public static List<Partition> getFingerprintedPartitions() {
        return new ArrayList<>();
    }

    public static class Partition {
        public String getName() {
            return "";
        }

        public String getFingerprint() {
            return "";
        }
    }

    public static class VERSION {
        public static final int SDK_INT = Integer.getInteger("level", 34);
    }
}
