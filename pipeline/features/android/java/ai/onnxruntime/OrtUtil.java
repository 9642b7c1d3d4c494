package ai.onnxruntime;

public final class OrtUtil {
    public static native String[] flattenString(Object strings);
}
