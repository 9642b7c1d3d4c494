"""Contexts in the Android library: what it holds, and its classes in a real JVM, with the real plugin where it is."""

import importlib.util
import json
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.features.android.package import SIGNATURES
from pipeline.release.bundle import make_bundle
from pipeline.release.manifest import read_manifest
from tests.command import ROOT, ort_mobile
from tests.features.android.jvm import fetched, released, run
from tests.features.android.samples import CPU, JAVAC, needs_java, npu_context, shipped, signature
from tests.ort_models import conv_relu, convert

STAND_INS = {
    "android/os/Build.java": """
package android.os;
public class Build {
    public static final String BOARD = "b", HARDWARE = "h", MODEL = "Galaxy";
    public static final String SOC_MODEL = System.getProperty("chip"), SOC_MANUFACTURER = "QTI";
    public static final String[] SUPPORTED_ABIS = {"arm64-v8a"};
    public static class VERSION {
        public static final int SDK_INT = 34;
    }
}
""",
    "android/system/Os.java": """
package android.system;
public class Os {
    public static void setenv(String name, String value, boolean overwrite) throws ErrnoException {}
}
""",
    "android/content/res/AssetManager.java": """
package android.content.res;
import java.io.*;
public class AssetManager {
    public InputStream open(String path) throws IOException {
        return new FileInputStream(new File(System.getProperty("assets"), path));
    }
    public AssetFileDescriptor openFd(String path) throws IOException {
        throw new FileNotFoundException("compressed");
    }
}
""",
}
"""What Android gives an app on a phone, for a JVM: the files of a folder as compressed assets, and a chip."""

OPEN = """
import android.content.ContentResolver;
import android.content.Context;
import android.content.pm.ApplicationInfo;
import android.content.res.AssetManager;
import com.example.demo.M;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Paths;

public class Open {
    public static void main(String[] arguments) throws Exception {
        Context app = new Context() {
            @Override public Context getApplicationContext() { return this; }
            @Override public Object getSystemService(String name) { return null; }
            @Override public ContentResolver getContentResolver() { return null; }
            @Override public ApplicationInfo getApplicationInfo() {
                ApplicationInfo info = new ApplicationInfo();
                info.nativeLibraryDir = arguments[0];
                return info;
            }
            @Override public AssetManager getAssets() { return new AssetManager(); }
            @Override public File getNoBackupFilesDir() { return new File(arguments[1]); }
        };
        ByteBuffer input = ByteBuffer.wrap(Files.readAllBytes(Paths.get(arguments[2]))).order(ByteOrder.LITTLE_ENDIAN);
        try (M model = M.open(app); M.Result result = model.run(input.asFloatBuffer())) {
            System.out.println(model.way());
            StringBuilder values = new StringBuilder();
            for (java.nio.FloatBuffer y = result.@OUTPUT@(); y.hasRemaining(); ) values.append(y.get()).append(' ');
            System.out.println(values);
            for (String reason : model.skipped()) System.out.println(reason);
        }
        System.exit(0);
    }
}
"""


def with_contexts(folder: Path, *chips: str, form: str = "ort") -> Path:
    """A bundle of a model for the CPU and of a context for each chip, whose bytes are no context's."""
    model = convert(conv_relu(), folder / "m.ort") if form == "ort" else conv_relu().SerializeToString()
    file = f"models/m.basic-fixed.{form}"
    sources: dict[str, Path | bytes] = {file: model}
    contexts = []
    for chip in chips:
        context = npu_context(chip)
        sources |= {context.file: b"wrapper of " + chip.encode(), context.binary: b"binary of " + chip.encode()}
        contexts.append(context)
    make_bundle(
        folder / "bundle", name="Demo app", sources=sources, made_with={}, evidence={}, models=(signature(),),
        ships=(shipped(runs=(CPU,), file=file, ort_release="1.29.0", abis=("arm64-v8a",)),), contexts=tuple(contexts),
    )  # fmt: skip
    return folder / "bundle"


def phone_classes(folder: Path) -> Path:
    """The classes of Android that an app on a phone has, of `STAND_INS` and of the signatures."""
    for name, text in STAND_INS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    files = [folder / name for name in STAND_INS]
    files += SIGNATURES.rglob("android/content/*.java")
    compiler = [*JAVAC, "-sourcepath", str(SIGNATURES), "-implicit:class", "-d", str(folder / "android.jar")]
    subprocess.run([*compiler, *map(str, files)], check=True)
    return folder / "android.jar"


def plugin_folder() -> Path:
    """The folder of the plugin and its libraries; a skip where the package is not installed."""
    package = importlib.util.find_spec("onnxruntime_qnn")
    if package is None or package.origin is None:
        pytest.skip("the package onnxruntime-qnn is not installed")
    return Path(package.origin).parent


def mnist_for_the_npu(folder: Path) -> Path:
    """A bundle of the example, as the model m, and of its context for SM8650."""
    example = ROOT / "build_configs/examples/mnist"
    (folder / "npu.toml").write_text(
        f"""
name = "digits"
models = [{{ path = "{example / "mnist.onnx"}", name = "m", test_data = "{example}" }}]
variants = {{ levels = ["all"], styles = ["fixed"], contexts = ["SM8650"] }}
targets = [{{ name = "phone", platform = "android", ort_release = "1.28" }}]
"""
    )
    ort_mobile("run", folder / "npu.toml", "--output", folder / "out", "--convert-only")
    return folder / "out/bundle"


def opened(bundle: Path, library: Path, libraries: Path, chip: str, given: Path, output: str = "y") -> list[str]:
    """What an app prints that opens and runs the released model on a device with a chip."""
    folder = bundle.parent
    aar = released(bundle, "--no-guard")
    with zipfile.ZipFile(aar) as archive:
        archive.extractall(folder / "aar")
    lines = run(
        OPEN.replace("@OUTPUT@", output), (str(libraries), str(folder / "private"), str(given)),
        (library, phone_classes(folder), aar.parent / "classes.jar"), folder,
        options=(f"-Dchip={chip}", f"-Dassets={folder / 'aar/assets'}"),
    )  # fmt: skip
    return [line for line in lines if "LIBNATIVE" not in line]  # the plugin says so once


@pytest.fixture(name="ones")
def _ones(tmp_path: Path) -> Path:
    np.ones(64, np.float32).tofile(tmp_path / "x.bin")
    return tmp_path / "x.bin"


@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize(
    ("chip", "reason"),
    [
        ("SM8650-AC", "qnn+SM8650: libonnxruntime_providers_qnn.so is not in "),
        ("SM8650P", "qnn+SM8650: libonnxruntime_providers_qnn.so is not in "),
        ("SM8550", "qnn: nothing was compiled for the NPU of [QTI SM8550, SM8550], arm64-v8a, API level 34"),
    ],
    ids=["no plugin", "a variant", "another chip"],
)
def test_a_device_without_the_npu_opens_the_next_row_and_says_why(
    tmp_path: Path, ones: Path, chip: str, reason: str
) -> None:
    library = fetched("jvm:1.28.0")
    (tmp_path / "native").mkdir()
    lines = opened(with_contexts(tmp_path, "SM8650"), library, tmp_path / "native", chip, ones)
    assert lines[0] == "cpu"
    assert len(lines[1].split()) == 128
    assert [line[: len(reason)] for line in lines[2:]] == [reason]


@pytest.mark.network
@pytest.mark.long
def test_a_file_of_the_onnx_format_is_opened_from_its_copy(tmp_path: Path, ones: Path) -> None:
    bundle = with_contexts(tmp_path, "SM8550", form="onnx")
    lines = opened(bundle, fetched("jvm:1.28.0"), tmp_path / "native", "SM8650", ones)
    assert lines[0] == "cpu"
    assert len(lines[1].split()) == 128


@pytest.mark.network
@pytest.mark.npu
@pytest.mark.long
def test_the_plugin_is_loaded_and_what_it_refuses_is_the_reason(tmp_path: Path, ones: Path) -> None:
    libraries = plugin_folder()
    library = fetched("jvm:1.28.0")
    lines = opened(with_contexts(tmp_path, "SM8650"), library, libraries, "SM8650", ones)
    assert lines[0] == "cpu"
    assert "m.qnn-SM8650.onnx" in lines[2], "these bytes are no context"


@pytest.mark.network
@pytest.mark.npu
@pytest.mark.long
def test_a_context_is_opened_by_the_java_api_and_computes_what_the_model_does(tmp_path: Path) -> None:
    libraries = plugin_folder()
    library = fetched("jvm:1.28.0")
    bundle = mnist_for_the_npu(tmp_path)
    (reference,) = read_manifest(bundle).references
    (output,) = reference.outputs
    lines = opened(bundle, library, libraries, "SM8650", bundle / reference.inputs[0].path, output.name)
    assert (lines[0], lines[2:]) == ("qnn+SM8650", [])
    expected = np.fromfile(bundle / output.path, np.float32)
    np.testing.assert_allclose(np.array(lines[1].split(), np.float32), expected, atol=0.02 * np.abs(expected).max())


def test_the_library_has_what_an_npu_needs_and_nothing_of_qualcomms(tmp_path: Path) -> None:
    needs_java()
    aar = released(with_contexts(tmp_path, "SM8650", "SM8750"))
    with zipfile.ZipFile(aar) as archive:
        names = archive.namelist()
        manifest = archive.read("AndroidManifest.xml").decode()
    assert [name for name in names if "qnn-" in name] == [
        f"assets/ort_mobile/com.example/demo/m.qnn-{chip}{end}"
        for chip in ("SM8650", "SM8750")
        for end in (".onnx", "_qnn.bin")
    ]
    libraries = [name for name in names if "libQnn" in name or name.endswith(".so")]
    assert [name for name in libraries if "trial" not in name] == []
    assert '<uses-native-library android:name="libcdsprpc.so" android:required="false" />' in manifest
    (module,) = aar.parent.glob("*.module")
    needs = json.loads(module.read_text())["variants"][0]["dependencies"]
    assert {row["module"]: row["version"] for row in needs if row["group"] == "com.qualcomm.qti"} == {
        "onnxruntime-android-qnn": {"strictly": "2.7.0"}, "qnn-runtime": {"strictly": "2.51.0"},
    }  # fmt: skip


def test_each_chip_gets_its_own_context_in_an_ai_pack(tmp_path: Path) -> None:
    needs_java()
    ort_mobile(
        "release", "android", with_contexts(tmp_path, "SM8650", "SM8750"), "--output", tmp_path / "repo", "--group",
        "com.example", "--version", "1.0", "--ai-pack", tmp_path / "pack",
    )  # fmt: skip
    assets = tmp_path / "pack/src/main/assets/ort_mobile/com.example"
    files = {folder.name: sorted(path.name for path in folder.iterdir()) for folder in assets.iterdir()}
    cpu = "m.basic-fixed.ort"
    assert files == {
        "demo-app-models#group_qti_sm8650": [cpu, "m.qnn-SM8650.onnx", "m.qnn-SM8650_qnn.bin"],
        "demo-app-models#group_qti_sm8750": [cpu, "m.qnn-SM8750.onnx", "m.qnn-SM8750_qnn.bin"],
        "demo-app-models#group_other": [cpu],
    }
    assert 'manufacturer="QTI" model="SM8650"' in (tmp_path / "pack/device_targeting_config.xml").read_text()


@pytest.mark.network
def test_the_classes_compile_against_the_real_api_of_android(tmp_path: Path) -> None:
    library = fetched("android:1.29.0")
    released(with_contexts(tmp_path, "SM8650"))
    with zipfile.ZipFile(library) as archive:
        archive.extract("classes.jar", tmp_path)
    (sources,) = (tmp_path / "repo").rglob("*-sources.jar")
    with zipfile.ZipFile(sources) as archive:
        archive.extractall(tmp_path / "sources")
    android = tmp_path / "android"
    for file in SIGNATURES.rglob("android*/**/*.java"):
        (android / file.relative_to(SIGNATURES)).parent.mkdir(parents=True, exist_ok=True)
        (android / file.relative_to(SIGNATURES)).write_text(file.read_text())
    files = [str(path) for path in (tmp_path / "sources").rglob("*.java")]
    done = subprocess.run(
        [*JAVAC, "-Xlint:all,-options", "-Werror", "-cp", str(tmp_path / "classes.jar"), "-sourcepath", str(android),
         "-implicit:none", "-d", str(tmp_path / "classes"), *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
