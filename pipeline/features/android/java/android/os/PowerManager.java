package android.os;

public final class PowerManager {
    public native boolean isPowerSaveMode();

    public native int getCurrentThermalStatus();
}
