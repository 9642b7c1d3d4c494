package ai.onnxruntime;

import java.util.Arrays;

/** The bad driver: "faults" has words such as nnapi:abort@open, of which those of C end the process for real. */
public final class Fault {
    static {
        System.load(System.getProperty("faults.library"));
    }

    private Fault() {}

    /** Ends the process by a signal, exits or never returns. */
    private static native void die(String kind);

    static void suffer(String provider, String stage) throws OrtException {
        for (String fault : System.getProperty("faults", "").split(",")) {
            String[] words = fault.split("[:@]");
            if (words.length == 3 && words[0].equals(provider) && words[2].equals(stage)) {
                if (words[1].equals("refuse")) {
                    throw new OrtException("no driver");
                } else if (words[1].equals("java")) {
                    throw new IllegalStateException("a driver's defect");
                }
                die(words[1]);
            }
        }
    }

    /** How long a run takes: "times" has words such as nnapi:500. */
    static long microseconds(String provider) {
        for (String time : System.getProperty("times", "").split(",")) {
            if (time.startsWith(provider + ":")) {
                return Long.parseLong(time.split(":")[1]);
            }
        }
        return 0;
    }

    static float[] spoiled(String provider, float[] outputs) {
        float[] spoiled = outputs.clone();
        int count = spoiled.length;
        for (String fault : System.getProperty("faults", "").split(",")) {
            switch (fault.startsWith(provider + ":") ? fault.split("[:@]")[1] : "") {
                case "nan":
                    spoiled[count / 3] = Float.NaN;
                    break;
                case "inf":
                    spoiled[count / 2] = Float.POSITIVE_INFINITY;
                    break;
                case "zeros":
                    Arrays.fill(spoiled, 0);
                    break;
                case "half":
                    Arrays.fill(spoiled, count / 2, count, 0);
                    break;
                case "permuted":
                    for (int i = 0; i < count; i++) {
                        spoiled[i] = outputs[(i + 1) % count];
                    }
                    break;
                case "reversed":
                    for (int i = 0; i < count; i++) {
                        spoiled[i] = outputs[count - 1 - i];
                    }
                    break;
                default:
                    break;
            }
        }
        return spoiled;
    }
}
