"""Opening a model and the first inference in a JVM: the released class beside the same calls of ONNX Runtime by hand.

Fresh processes in alternating order; by hand runs twice a round, which shows the noise. Then both within one process,
where the library is loaded and warm. Needs a JDK and, the first time, Maven.
"""

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.campaign import EXAMPLE
from benchmarks.simulate.verdicts import markdown
from pipeline.campaign.statistics import ratio_interval
from pipeline.config import ModelConfig
from pipeline.core.variant import Level, Variant
from pipeline.library.fetch import get_library
from pipeline.release.android.maven import java_package, models_module, publication, publish
from pipeline.release.android.package import SIGNATURES, android_package
from pipeline.release.bundle import make_bundle
from pipeline.release.contents import signature_of
from pipeline.release.manifest import Shipped

ROUNDS, WITHIN = 25, 200
LIBRARY = "jvm:1.28.0"
WAYS = ("facade", "hand", "again")
"""The released class, the calls by hand, and these again."""

PROGRAM = """
import ai.onnxruntime.*;
import com.example.demo.Mnist;
import java.nio.*;
import java.nio.channels.FileChannel;
import java.nio.file.*;
import java.util.Collections;

public class Start {
    static final FloatBuffer IMAGE = ByteBuffer.allocateDirect(4 * 784).order(ByteOrder.nativeOrder()).asFloatBuffer();

    static ByteBuffer map(String path) throws Exception {
        try (FileChannel file = FileChannel.open(Paths.get(path))) {
            return file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
        }
    }

    static float facade(String path) throws Exception {
        try (Mnist model = Mnist.open(map(path)); Mnist.Result result = model.run(IMAGE)) {
            return result.@OUTPUT@().get(0);
        }
    }

    static float hand(String path) throws Exception {
        OrtEnvironment environment = OrtEnvironment.getEnvironment();
        ByteBuffer bytes = map(path);
        try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
            options.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.ALL_OPT);
            options.addConfigEntry("session.use_ort_model_bytes_directly", "1");
            options.addConfigEntry("session.use_ort_model_bytes_for_initializers", "1");
            try (OrtSession session = environment.createSession(bytes, options);
                    OnnxTensor input = OnnxTensor.createTensor(environment, IMAGE, new long[] {1, 1, 28, 28});
                    OrtSession.Result result = session.run(Collections.singletonMap("@INPUT@", input))) {
                return ((OnnxTensor) result.get(0)).getFloatBuffer().get(0) + 0f * bytes.get(0);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < Integer.parseInt(arguments[1]); i++) {
            for (int place = 0; place < arguments.length - 2; place++) {
                int word = i % 2 == 0 ? 2 + place : arguments.length - 1 - place;
                long start = System.nanoTime();
                float value = arguments[word].equals("facade") ? facade(arguments[0]) : hand(arguments[0]);
                System.out.println(arguments[word] + " " + (System.nanoTime() - start) + " " + value);
            }
        }
        System.exit(0);
    }
}
"""


def released(folder: Path) -> tuple[Path, Path, str]:
    """The example's model as an ORT format file, the released classes, and the program that opens it both ways."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    model = folder / "mnist.ort"
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(model)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(EXAMPLE), options, providers=["CPUExecutionProvider"])
    signature = signature_of("mnist", model, ModelConfig(path=""))
    one = Shipped(
        target="phone", platform="android", model="mnist", model_sha256="", variant=Variant(level=Level.EXTENDED),
        file="models/mnist.ort", semantic_digest="", provider="cpu", ort_release="1.28.0", basis="advised",
    )  # fmt: skip
    manifest = make_bundle(
        folder / "bundle", name="demo", sources={one.file: model}, ships=(one,), made_with={}, evidence={},
        models=(signature,),
    )  # fmt: skip
    named = publication("com.example", "demo", "1.0")
    package = android_package(folder / "bundle", manifest, java_package(None, named), None)
    publish([models_module(package, named, None)], folder / "repo")
    with zipfile.ZipFile(folder / "repo" / named.folder / f"{named.stem}.aar") as aar:
        aar.extract("classes.jar", folder)
    program = PROGRAM.replace("@INPUT@", signature.inputs[0].name).replace("@OUTPUT@", signature.outputs[0].name)
    return model, folder / "classes.jar", program


def command(folder: Path, library: Path, classes: Path, program: str) -> list[str]:
    """The compiled program; its libraries lie unpacked beside it, so that no process unpacks them."""
    natives = folder / "natives"
    natives.mkdir()
    with zipfile.ZipFile(library) as jar:
        for name in jar.namelist():
            if name.startswith("ai/onnxruntime/native/linux-x64/") and name.endswith(".so"):
                with jar.open(name) as source, (natives / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    (folder / "Start.java").write_text(program)
    path = f"{library}:{classes}:{folder}"
    subprocess.run([
        "javac", "-cp", path, "-sourcepath", str(SIGNATURES), "-implicit:none", "-d", str(folder),
        str(folder / "Start.java"),
    ], check=True)  # fmt: skip
    return ["java", f"-Donnxruntime.native.path={natives}", "-cp", path, "Start"]


def times(words: list[str]) -> list[tuple[str, float]]:
    """Milliseconds of one process by what it opened the model with."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(name, int(taken) / 1e6) for name, taken, _ in lines]


def row(where: str, taken: dict[str, list[float]], name: str) -> tuple[str, ...]:
    """One way beside the calls by hand, round by round."""
    logs = np.log(np.array(taken[name]) / np.array(taken["hand"]))
    found = ratio_interval(logs, 0.95)
    bounds = f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})" if found else "-"
    own = np.percentile(taken[name], [50, 25, 75])
    return where, name, str(len(logs)), f"{own[0]:.2f}", f"{own[1]:.2f} to {own[2]:.2f}", bounds


def main() -> None:
    """Print the table."""
    fresh: dict[str, list[float]] = {name: [] for name in WAYS}
    warm: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as name:
        library = Path(get_library(LIBRARY).file)
        model, classes, program = released(Path(name))
        start = [*command(Path(name), library, classes, program), str(model)]
        for number in range(ROUNDS):
            for way in WAYS if number % 2 else WAYS[::-1]:
                fresh[way] += [taken for _, taken in times([*start, "1", way])]
        for way, taken in times([*start, str(WITHIN), *WAYS]):
            warm[way].append(taken)
    warm = {way: taken[WITHIN // 4 :] for way, taken in warm.items()}
    head = ("where", "opened by", "rounds", "median ms", "middle half", "times by hand (95 % interval)")
    rows = [row(where, taken, way) for where, taken in (("fresh process", fresh), ("within one", warm)) for way in WAYS]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
