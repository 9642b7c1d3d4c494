package android.graphics;

import java.nio.Buffer;

public class Bitmap {
    public enum Config {
        ARGB_8888
    }

    public native Config getConfig();

    public native ColorSpace getColorSpace();

    public native int getWidth();

    public native int getHeight();

    public native int getRowBytes();

    public native void copyPixelsToBuffer(Buffer pixels);
}
