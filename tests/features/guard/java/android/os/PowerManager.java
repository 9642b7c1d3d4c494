package android.os;

public final class PowerManager {
    public boolean isPowerSaveMode() {
        return Boolean.getBoolean("saver");
    }

    public int getCurrentThermalStatus() {
        return Integer.getInteger("heat", 0);
    }
}
