package android.content;

public final class IntentFilter {
    public IntentFilter(String action) {}
}
