package ai.onnxruntime;

public class TensorInfo {
    public native long[] getShape();
}
