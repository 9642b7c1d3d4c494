package ai.onnxruntime;

import java.nio.ByteBuffer;
import java.util.List;

public final class OrtEnvironment {
    public static native OrtEnvironment getEnvironment();

    public native String getVersion();

    public native void setTelemetry(boolean send) throws OrtException;

    public native OrtSession createSession(String path, OrtSession.SessionOptions options) throws OrtException;

    public enum OrtCompiledModelCompatibility {
        EP_NOT_APPLICABLE,
        EP_SUPPORTED_OPTIMAL,
        EP_SUPPORTED_PREFER_RECOMPILATION,
        EP_UNSUPPORTED
    }

    public native void registerExecutionProviderLibrary(String name, String path) throws OrtException;

    public native List<OrtEpDevice> getEpDevices() throws OrtException;

    public native OrtCompiledModelCompatibility getModelCompatibilityForEpDevices(
            List<OrtEpDevice> devices, String compatibility) throws OrtException;

    public native OrtSession createSession(ByteBuffer model, OrtSession.SessionOptions options) throws OrtException;
}
