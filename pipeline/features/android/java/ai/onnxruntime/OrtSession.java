package ai.onnxruntime;

import ai.onnxruntime.providers.NNAPIFlags;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;

public class OrtSession implements AutoCloseable {
    public native Result run(Map<String, ? extends OnnxTensorLike> inputs) throws OrtException;

    @Override
    public native void close() throws OrtException;

    public static class Result implements AutoCloseable {
        public native OnnxValue get(int index);

        @Override
        public native void close();
    }

    public static class SessionOptions implements AutoCloseable {
        public enum OptLevel {
            NO_OPT,
            BASIC_OPT,
            EXTENDED_OPT,
            LAYOUT_OPT,
            ALL_OPT
        }

        public enum ExecutionMode {
            SEQUENTIAL,
            PARALLEL
        }

        public native void setOptimizationLevel(OptLevel level) throws OrtException;

        public native void setIntraOpNumThreads(int threads) throws OrtException;

        public native void setInterOpNumThreads(int threads) throws OrtException;

        public native void setExecutionMode(ExecutionMode mode) throws OrtException;

        public native void setMemoryPatternOptimization(boolean on) throws OrtException;

        public native void setCPUArenaAllocator(boolean on) throws OrtException;

        public native void registerCustomOpLibrary(String path) throws OrtException;

        public native void addConfigEntry(String key, String value) throws OrtException;

        public native void addNnapi() throws OrtException;

        public native void addNnapi(EnumSet<NNAPIFlags> flags) throws OrtException;

        public native void addXnnpack(Map<String, String> options) throws OrtException;

        public native void addQnn(Map<String, String> options) throws OrtException;

        public native void addWebGPU(Map<String, String> options) throws OrtException;

        public native void addExecutionProvider(List<OrtEpDevice> devices, Map<String, String> options)
                throws OrtException;

        public native void addCoreML(Map<String, String> options) throws OrtException;

        @Override
        public native void close();
    }
}
