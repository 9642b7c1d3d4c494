package android.os;

import java.util.TreeMap;

public final class Bundle {
    private final TreeMap<String, Object> values = new TreeMap<>();

    public void putString(String key, String value) {
        values.put(key, value);
    }

    public void putInt(String key, int value) {
        values.put(key, value);
    }

    @Override
    public String toString() {
        return values.toString().replace("\n", " ");
    }
}
