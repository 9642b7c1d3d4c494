package android.content;

/** The battery: half full, cool, plugged in. */
public final class Intent {
    public static final String ACTION_BATTERY_CHANGED = "battery";

    public int getIntExtra(String name, int otherwise) {
        switch (name) {
            case "level":
                return 100;
            case "scale":
                return 200;
            case "temperature":
                return 251;
            case "plugged":
                return 2;
            default:
                return otherwise;
        }
    }
}
