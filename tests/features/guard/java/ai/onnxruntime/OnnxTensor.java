package ai.onnxruntime;

import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** A tensor of floats. */
public class OnnxTensor extends OnnxTensorLike {
    private final float[] values;

    OnnxTensor(float[] values) {
        this.values = values;
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, FloatBuffer data, long[] shape) {
        float[] values = new float[data.remaining()];
        data.duplicate().get(values);
        return new OnnxTensor(values);
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, DoubleBuffer data, long[] shape) {
        throw new UnsupportedOperationException();
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, LongBuffer data, long[] shape) {
        throw new UnsupportedOperationException();
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, IntBuffer data, long[] shape) {
        throw new UnsupportedOperationException();
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, ShortBuffer data, long[] shape) {
        throw new UnsupportedOperationException();
    }

    public static OnnxTensor createTensor(
            OrtEnvironment environment, ShortBuffer data, long[] shape, OnnxJavaType type) {
        throw new UnsupportedOperationException();
    }

    public static OnnxTensor createTensor(
            OrtEnvironment environment, ByteBuffer data, long[] shape, OnnxJavaType type) {
        return createTensor(environment, data.asFloatBuffer(), shape);
    }

    public TensorInfo getInfo() {
        return new TensorInfo();
    }

    public FloatBuffer getFloatBuffer() {
        return FloatBuffer.wrap(values);
    }

    public DoubleBuffer getDoubleBuffer() {
        return null;
    }

    public LongBuffer getLongBuffer() {
        return null;
    }

    public IntBuffer getIntBuffer() {
        return null;
    }

    public ShortBuffer getShortBuffer() {
        return null;
    }

    public ByteBuffer getByteBuffer() {
        return null;
    }

    @Override
    public void close() {}
}
