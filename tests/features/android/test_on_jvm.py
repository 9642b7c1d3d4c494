"""The published classes in a real JVM with the real ONNX Runtime, and the repository in the real Maven."""

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from device_runner.spec import RunOptions
from pipeline.core.variant import Level, Variant
from tests.android_host.bundles import bundle_of, nnapi, parsed
from tests.command import ort_mobile
from tests.features.android.jvm import check_reference, fetched, place_of, released, run
from tests.features.android.samples import (
    CPU,
    FLAGSHIP,
    OLD_CHIP,
    WEBGPU,
    WEIGHTS,
    bundle,
    needs_java,
    shipped,
    two_classes,
)

pytestmark = pytest.mark.network

MAIN = """
import com.example.demo.M;
import java.io.File;
import java.io.FileInputStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.channels.FileChannel;

public class Main {
    static void show(M model) throws Exception {
        for (int i = 0; i < 20; i++) {
            System.gc();  // what the session reads must not go
            byte[] fill = new byte[1 << 20];
        }
        float[] x = new float[64];
        for (int i = 0; i < x.length; i++) x[i] = i / 10f - 3;
        System.out.println(model.way());
        try (M.Result result = model.run(FloatBuffer.wrap(x))) {
            StringBuilder line = new StringBuilder();
            for (long size : result.yShape()) line.append(size).append(' ');
            System.out.println(line);
            line.setLength(0);
            FloatBuffer y = result.y();
            while (y.hasRemaining()) line.append(y.get()).append(' ');
            System.out.println(line);
        }
        model.close();
        model.close();  // a second time does nothing
    }

    static M mapped(String aar, long offset, long size) throws Exception {
        try (FileChannel channel = new FileInputStream(aar).getChannel()) {
            return M.open(channel.map(FileChannel.MapMode.READ_ONLY, offset, size));
        }
    }

    public static void main(String[] arguments) throws Exception {
        show(mapped(arguments[0], Long.parseLong(arguments[1]), Long.parseLong(arguments[2])));
        show(M.open(new File(arguments[3])));
        File other = new File(arguments[4]);
        try {
            M.open(other, arguments[5]);
        } catch (ai.onnxruntime.OrtException error) {
            System.out.println("refused, earlier " + error.getSuppressed().length);
        }
        try {
            M.open(ByteBuffer.allocateDirect(64));
        } catch (java.io.IOException error) {
            System.out.println(error.getMessage());
        }
        try {
            M.open(other);
        } catch (java.io.IOException error) {
            System.out.println(error.getMessage());
        }
        System.exit(0);
    }
}
"""

CONSUMER = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>app</groupId><artifactId>app</artifactId><version>1</version>
  <repositories><repository><id>models</id><url>{url}</url>
    <releases><checksumPolicy>fail</checksumPolicy></releases></repository></repositories>
  <dependencies><dependency>
    <groupId>com.example</groupId><artifactId>demo-app-models</artifactId><version>1.0</version><type>aar</type>
    <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
  </dependency></dependencies>
</project>
"""


EXAMPLE = Path(__file__).parents[3] / "build_configs/examples/mnist/mnist.onnx"

CLASSES = """
import com.example.demo.DeviceClass;
import com.example.demo.M;
import java.io.File;
import java.nio.FloatBuffer;
import java.util.Arrays;

public class Classes {
    public static void main(String[] arguments) throws Exception {
        for (int i = 1; i < arguments.length; i += 3) {
            DeviceClass device = new DeviceClass(
                    Arrays.asList("x", arguments[i]), arguments[i + 1], Integer.parseInt(arguments[i + 2]));
            String asset = M.asset(device);
            float[] x = new float[64];
            Arrays.fill(x, 1f);
            try (M model = M.open(new File(arguments[0], asset), device);
                    M.Result result = model.run(FloatBuffer.wrap(x))) {
                System.out.println(asset + " " + model.way() + " " + result.y().get(64 + 9));
            }
        }
        System.exit(0);
    }
}
"""


def test_the_model_runs_mapped_out_of_the_package_and_from_a_file(tmp_path: Path) -> None:
    library = fetched("jvm:1.28.0")
    bundle(tmp_path)
    aar = released(tmp_path / "bundle")
    content = (tmp_path / "bundle/models/m.basic-fixed.ort").read_bytes()
    other = tmp_path / "other.ort"
    other.write_bytes(bytes(64))
    digest = hashlib.sha256(bytes(64)).hexdigest()
    arguments = (str(aar), *place_of(aar, "m.basic-fixed.ort"), str(tmp_path / "m.ort"), str(other), digest)
    lines = run(MAIN, arguments, (library, aar.parent / "classes.jar"), tmp_path)
    x = (np.arange(64, dtype=np.float32) / np.float32(10) - np.float32(3)).reshape(1, 1, 8, 8)
    (expected,) = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for way, shape, values in (lines[:3], lines[3:6]):
        assert way == "cpu"  # the JAR has no NNAPI: the first way fails, the second is taken
        assert shape.split() == ["1", "2", "8", "8"]
        np.testing.assert_allclose(np.array(values.split(), np.float32), expected.ravel(), rtol=1e-5, atol=1e-6)
    assert lines[6] == "refused, earlier 1"
    wanted = f"is not the file that was released: its sha256 is {digest}, not {hashlib.sha256(content).hexdigest()}"
    assert lines[7:] == [f"the buffer {wanted}", f"{other} {wanted}"]


@pytest.mark.parametrize("release", ["1.20.0", pytest.param("1.28.0", marks=pytest.mark.nightly)])
def test_each_release_computes_what_the_original_model_does(tmp_path: Path, release: str) -> None:
    library = fetched(f"jvm:{release}")
    ways = check_reference(bundle_of(tmp_path, EXAMPLE, (nnapi(), RunOptions(intra_op_threads=1))), library)
    assert ways == ["cpu+threads=1"] * 2


def test_a_device_opens_what_its_class_was_released_with(tmp_path: Path) -> None:
    library = fetched("jvm:1.28.0")
    two_classes(tmp_path)
    aar = released(tmp_path / "bundle", "--telemetry", "off")
    with zipfile.ZipFile(aar) as archive:
        archive.extractall(tmp_path / "aar")
    devices = (
        ("Qualcomm SM8550", "arm64-v8a", "33"),
        ("Qualcomm SM8550", "arm64-v8a", "30"),  # below what was measured
        ("Qualcomm SM8550", "x86_64", "33"),
        ("msm8998", "arm64-v8a", "27"),
        ("Tensor", "arm64-v8a", "35"),
    )
    arguments = (str(tmp_path / "aar/assets"), *(word for device in devices for word in device))
    lines = [line.split() for line in run(CLASSES, arguments, (library, aar.parent / "classes.jar"), tmp_path)]
    own, other = "ort_mobile/com.example/demo/m.layout-fixed.ort", "ort_mobile/com.example/demo/m.basic-fixed.ort"
    assert [line[0] for line in lines] == [own, other, other, other, other]
    assert [line[1] for line in lines][1:] == ["cpu", "cpu", "cpu+session.intra_op.allow_spinning=0", "cpu"]
    values = [float(line[2]) for line in lines]
    assert values[0] == pytest.approx(3 * values[1])
    assert values[1] > 0


GPU = """
import com.example.demo.M;
import java.io.File;
import java.nio.FloatBuffer;

public class Gpu {
    public static void main(String[] arguments) throws Exception {
        M model = M.open(new File(arguments[0]));
        System.out.println(model.way());
        System.out.println(model.skipped().size() + " " + model.skipped().get(0));
        Thread first = model.warmUp(FloatBuffer.allocate(64));
        System.out.println(first != Thread.currentThread() && first == model.warmUp(FloatBuffer.allocate(64)));
        model.close();
        System.out.println(first.isAlive());
        try {
            model.warmUp(FloatBuffer.allocate(64));
        } catch (IllegalStateException error) {
            System.out.println(error.getMessage());
        }
        System.exit(0);
    }
}
"""


def test_without_webgpu_the_cpu_runs_the_model_and_says_why(tmp_path: Path) -> None:
    library = fetched("jvm:1.28.0")
    bundle(tmp_path, (shipped(runs=(WEBGPU, CPU)),))
    aar = released(tmp_path / "bundle")
    lines = run(GPU, (str(tmp_path / "m.ort"),), (library, aar.parent / "classes.jar"), tmp_path)
    assert lines[0] == "cpu"
    assert lines[1].startswith("1 webgpu+preferredLayout=NCHW: ")
    assert lines[2:] == ["true", "false", "closed"]


BUILD = """
package android.os;
public class Build {
    public static final String BOARD = "flame", HARDWARE = "flame", MODEL = "Pixel 4";
    public static final String SOC_MODEL = "SM8550", SOC_MANUFACTURER = "Qualcomm";
    public static final String[] SUPPORTED_ABIS = {"arm64-v8a"};
    public static class VERSION {
        public static final int SDK_INT = Integer.getInteger("level");
    }
}
"""
THIS = """
import com.example.demo.DeviceClass;
import com.example.demo.M;
public class This {
    public static void main(String[] arguments) {
        System.out.println(M.asset(DeviceClass.ofThisDevice()));
    }
}
"""


def test_a_device_has_the_chip_that_campaigns_record(tmp_path: Path) -> None:
    """By a property of its system, from API level 31 on by Build; another chip's asset where it is neither."""
    library = fetched("jvm:1.28.0")
    layout = shipped(file="models/m.layout-fixed.ort", variant=Variant(level=Level.LAYOUT))
    bundle(tmp_path, (shipped(), layout), classes=((), (FLAGSHIP, OLD_CHIP)), weights=WEIGHTS)
    aar = released(tmp_path / "bundle")
    (tmp_path / "android/os").mkdir(parents=True)
    (tmp_path / "android/os/Build.java").write_text(BUILD)
    subprocess.run(["javac", "-d", str(tmp_path), str(tmp_path / "android/os/Build.java")], check=True)
    getprop = tmp_path / "bin/getprop"
    getprop.parent.mkdir()
    getprop.touch(0o755)
    path = {"PATH": f"{getprop.parent}:{os.environ['PATH']}"}
    assets = {}
    for level, chip in (("29", "msm8998"), ("33", "other"), ("29", "sm8150")):
        getprop.write_text(f'#!/bin/sh\n[ "$1" = ro.board.platform ] && echo {chip}\n')
        classes, options = (library, aar.parent / "classes.jar"), (f"-Dlevel={level}",)
        assets[level, chip] = run(THIS, (), classes, tmp_path, options=options, environment=path)
    assert assets == {
        ("29", "msm8998"): ["ort_mobile/com.example/demo/m.layout-fixed.ort"],
        ("33", "other"): ["ort_mobile/com.example/demo/m.layout-fixed.ort"],
        ("29", "sm8150"): ["ort_mobile/com.example/demo/m.basic-fixed.ort"],
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    needs_java()
    bundle(tmp_path)
    named = ("--output", str(tmp_path / "repo"), "--group", "com.example", "--version", "1.0")
    ort_mobile("release", "android", tmp_path / "bundle", *named)
    return tmp_path / "repo"


def test_maven_takes_the_package_with_checksums_enforced(repository: Path, tmp_path: Path) -> None:
    if not shutil.which("mvn"):
        pytest.skip("no mvn: install Maven")
    (tmp_path / "pom.xml").write_text(CONSUMER.format(url=repository.as_uri()))
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    command = [
        "mvn",
        "-B",
        "-q",
        goal,
        f"-DoutputDirectory={tmp_path / 'found'}",
        f"-Dmaven.repo.local={tmp_path / 'm2'}",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert [file.name for file in (tmp_path / "found").iterdir()] == ["demo-app-models-1.0.aar"]
    assert (tmp_path / "found/demo-app-models-1.0.aar").read_bytes() == next(repository.rglob("*.aar")).read_bytes()


STRINGS = """
import com.example.demo.Model;
import java.io.File;

public class Strings {
    public static void main(String[] arguments) throws Exception {
        try (Model model = Model.open(new File(arguments[0]));
                Model.Result result = model.run(new String[] {"a", "ü", "", "語"}, new long[] {2, 2})) {
            System.out.println(String.join(",", result.doubled()) + " " + result.doubledShape().length);
            System.out.println(String.join(",", result.first()) + " " + result.firstShape().length);
        }
        System.exit(0);
    }
}
"""


def test_strings_go_in_and_come_out(tmp_path: Path) -> None:
    library = fetched("jvm:1.28.0")
    text = """text (string[n, 2] words) => (string[n, 2] doubled, string first) <int64[2] at = {0, 1}> {
        doubled = StringConcat(words, words)
        first = GatherND(doubled, at)
    }"""
    bundle = bundle_of(tmp_path, parsed(text, 20), reference=False)
    aar = released(bundle)
    classes = (library, aar.parent / "classes.jar")
    lines = run(STRINGS, (str(bundle / "models/model.ort"),), classes, tmp_path)
    assert lines == ["aa,üü,,語語 2", "üü 0"]
