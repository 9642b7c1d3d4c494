package ai.onnxruntime;

import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

public class OnnxTensor extends OnnxTensorLike {
    public static native OnnxTensor createTensor(OrtEnvironment environment, FloatBuffer data, long[] shape)
            throws OrtException;

    public static native OnnxTensor createTensor(OrtEnvironment environment, DoubleBuffer data, long[] shape)
            throws OrtException;

    public static native OnnxTensor createTensor(OrtEnvironment environment, LongBuffer data, long[] shape)
            throws OrtException;

    public static native OnnxTensor createTensor(OrtEnvironment environment, IntBuffer data, long[] shape)
            throws OrtException;

    public static native OnnxTensor createTensor(OrtEnvironment environment, ShortBuffer data, long[] shape)
            throws OrtException;

    public static native OnnxTensor createTensor(
            OrtEnvironment environment, ShortBuffer data, long[] shape, OnnxJavaType type) throws OrtException;

    public static native OnnxTensor createTensor(
            OrtEnvironment environment, ByteBuffer data, long[] shape, OnnxJavaType type) throws OrtException;

    public static native OnnxTensor createTensor(OrtEnvironment environment, String[] data, long[] shape)
            throws OrtException;

    public native TensorInfo getInfo();

    public native Object getValue() throws OrtException;

    public native FloatBuffer getFloatBuffer();

    public native DoubleBuffer getDoubleBuffer();

    public native LongBuffer getLongBuffer();

    public native IntBuffer getIntBuffer();

    public native ShortBuffer getShortBuffer();

    public native ByteBuffer getByteBuffer();

    @Override
    public native void close();
}
