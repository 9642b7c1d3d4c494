package android.os;

public final class PowerManager {
    public boolean isInteractive() {
        return true;
    }

    public int getCurrentThermalStatus() {
        return Integer.getInteger("heat", 0);
    }
}
