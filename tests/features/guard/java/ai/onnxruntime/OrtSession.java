package ai.onnxruntime;

import ai.onnxruntime.providers.NNAPIFlags;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumSet;
import java.util.Map;

/** A session that gives the outputs of a file, and fails as the property "faults" says. */
public class OrtSession implements AutoCloseable {
    private final String provider;
    private final float[] outputs;
    private int runs;

    OrtSession(SessionOptions options) throws OrtException {
        provider = options.provider;
        Fault.suffer(provider, "open");
        try {
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Path.of(System.getProperty("outputs"))));
            outputs = new float[bytes.remaining() / 4];
            bytes.order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(outputs);
        } catch (IOException error) {
            throw new OrtException(error.getMessage());
        }
    }

    public Result run(Map<String, ? extends OnnxTensorLike> inputs) throws OrtException {
        runs++;
        long end = System.nanoTime() + 1000 * Fault.microseconds(provider);
        while (System.nanoTime() < end) {
            Thread.onSpinWait();
        }
        Fault.suffer(provider, runs == 1 ? "first_run" : "run");
        return new Result(Fault.spoiled(provider, outputs));
    }

    @Override
    public void close() throws OrtException {
        Fault.suffer(provider, "close");
    }

    public static class Result implements AutoCloseable {
        private final OnnxTensor output;

        Result(float[] values) {
            output = new OnnxTensor(values);
        }

        public OnnxValue get(int index) {
            return output;
        }

        @Override
        public void close() {}
    }

    public static class SessionOptions implements AutoCloseable {
        public enum OptLevel {
            NO_OPT,
            BASIC_OPT,
            EXTENDED_OPT,
            LAYOUT_OPT,
            ALL_OPT
        }

        String provider = "cpu";

        public void setOptimizationLevel(OptLevel level) {}

        public void setIntraOpNumThreads(int threads) {}

        public void addConfigEntry(String key, String value) {}

        public void addNnapi(EnumSet<NNAPIFlags> flags) throws OrtException {
            provider = "nnapi";
            Fault.suffer(provider, "options");
        }

        public void addNnapi() throws OrtException {
            addNnapi(EnumSet.noneOf(NNAPIFlags.class));
        }

        public void addWebGPU(Map<String, String> options) throws OrtException {
            provider = "webgpu";
            Fault.suffer(provider, "options");
        }

        public void addXnnpack(Map<String, String> options) throws OrtException {
            provider = "xnnpack";
            Fault.suffer(provider, "options");
        }

        @Override
        public void close() {}
    }
}
