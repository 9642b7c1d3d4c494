package ai.onnxruntime;

import java.nio.ByteBuffer;

public final class OrtEnvironment {
    public static native OrtEnvironment getEnvironment();

    public native void setTelemetry(boolean send) throws OrtException;

    public native OrtSession createSession(String path, OrtSession.SessionOptions options) throws OrtException;

    public native OrtSession createSession(ByteBuffer model, OrtSession.SessionOptions options) throws OrtException;
}
