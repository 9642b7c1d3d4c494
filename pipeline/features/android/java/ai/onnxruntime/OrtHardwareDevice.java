package ai.onnxruntime;

public final class OrtHardwareDevice {
    public enum OrtHardwareDeviceType {
        CPU,
        GPU,
        NPU
    }

    public native OrtHardwareDeviceType getType();
}
