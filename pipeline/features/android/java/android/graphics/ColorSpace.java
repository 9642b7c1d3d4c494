package android.graphics;

public class ColorSpace {
    public native boolean isSrgb();
}
