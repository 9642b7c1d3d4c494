package ai.onnxruntime;

import java.nio.ByteBuffer;

public final class OrtEnvironment {
    private static final OrtEnvironment ONLY = new OrtEnvironment();

    public static OrtEnvironment getEnvironment() {
        return ONLY;
    }

    public String getVersion() {
        return "1.29.0";
    }

    public OrtSession createSession(String path, OrtSession.SessionOptions options) throws OrtException {
        return new OrtSession(options);
    }

    public OrtSession createSession(ByteBuffer model, OrtSession.SessionOptions options) throws OrtException {
        return new OrtSession(options);
    }
}
