"""Kotlin takes the published Java classes: nullability, the guide's example, the code of bundles, a model that runs."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.features.languages.snippet import asset_folder
from pipeline.release.app_code import kotlin
from pipeline.release.manifest import read_manifest
from pipeline.release.selection import PICKING
from tests.command import ort_mobile
from tests.consumers.android import check_logits, guide_code, libraries, model_file, reference, unpacked_aar
from tests.consumers.jars import classpath, jars, run
from tests.features.android.jvm import fetched
from tests.features.android.test_npu import mnist_for_the_npu, phone_classes, plugin_folder, with_contexts
from tests.features.sizes import PICKED, expected, two_sizes
from tests.release.test_app_code import CPU, FILE, OTHERS

pytestmark = pytest.mark.consumer

COMPILER = "org.jetbrains.kotlin:kotlin-compiler-embeddable:2.2.20"
STRICT = ("-no-stdlib", "-no-reflect", "-Xexplicit-api=strict", "-Werror", "-jvm-target", "1.8")

WRONG = """\
package app

import com.example.mnist_models.Mnist
import java.io.File

public fun wrong(model: Mnist) {
    model.run(null)
    Mnist.open(null as File?)
    val way: Int = model.way()
    model.run(FloatArray(784))
}
fun forgotten() {}
"""
REFUSED = {
    7: "null cannot be a value of a non-null type",
    8: "actual type is 'File?', but 'File' was expected",
    9: "expected 'Int', actual 'String'",
    10: "actual type is 'FloatArray', but 'FloatBuffer' was expected",
    12: "visibility must be specified",
}
"""Line of WRONG to what the compiler says of it."""


def compiled(folder: Path, *sources: Path, against: Sequence[Path] = (), fails: bool = False) -> tuple[str, str]:
    """The class path with these sources compiled against archives (default: the example's), and what is said."""
    compiler = jars(COMPILER)
    stdlib = [path for path in compiler if path.name.startswith("kotlin-stdlib")]
    path = classpath(against or [unpacked_aar() / "classes.jar", *libraries()], stdlib)
    main = ("java", "-cp", classpath(compiler), "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler")
    said = run(*main, *STRICT, "-cp", path, "-d", folder / "out", *sources, folder=folder, fails=fails)
    return classpath(folder / "out", Path(path)), said


def function(name: str, parameters: str, lines: str) -> str:
    """Code of a document as a function; its imports stay in front."""
    imports = [line for line in lines.splitlines() if line.startswith("import ")]
    body = [f"    {line}" for line in lines.splitlines() if line not in imports]
    head = [f"package {name}", *imports, f"public fun example({parameters}) {{"]
    return "\n".join([*head, *body, "}", ""])


def documented(folder: Path) -> list[Path]:
    """Files with the Kotlin of the guide, of bundles' README.md, and of their table of devices."""
    codes = [
        function(f"a{number}", "path: String", "\n".join(kotlin(options, FILE)))
        for number, options in enumerate((CPU, *OTHERS))
    ]
    guide = ("android.content.Context", "com.example.mnist_models.Mnist", "java.nio.FloatBuffer")
    imports = "".join(f"import {name}\n" for name in guide)
    codes.append(function("guide", "context: Context, pixels: FloatBuffer", imports + guide_code("kotlin")))
    picking = PICKING.split("```kotlin\n")[1].split("```")[0]
    codes.append(f"package pick\nimport android.os.Build\nimport org.json.JSONObject\npublic {picking}")
    files = [folder / f"code{number}.kt" for number in range(len(codes))]
    for file, code in zip(files, codes, strict=True):
        file.write_text(code, "utf-8")
    return files


def test_kotlin_compiles_what_the_documents_show_and_an_app_runs_the_model(tmp_path: Path) -> None:
    app = Path(__file__).with_name("App.kt")
    path, _ = compiled(tmp_path, app, *documented(tmp_path))
    lines = run("java", "-cp", path, "app.AppKt", model_file(), reference().image, folder=tmp_path).splitlines()
    check_logits("\n".join(lines[:2]))
    assert lines[2] == "[image]"


OPEN = """
package app

import android.content.Context
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer

private class Phone(private val libraries: String, private val storage: String) : Context() {
    override fun getApplicationContext(): Context = this
    override fun getSystemService(name: String): Any? = null
    override fun getContentResolver(): android.content.ContentResolver? = null
    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().also { it.nativeLibraryDir = libraries }
    override fun getAssets(): AssetManager = AssetManager()
    override fun getNoBackupFilesDir(): File = File(storage)
}

public fun main(arguments: Array<String>) {
    val opened = openM(Phone(arguments[0], arguments[1]))
    println(opened.way)
    val bytes = ByteBuffer.wrap(File(arguments[2]).readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    val (name, shape) = opened.session.inputInfo.entries.single().let {
        it.key to (it.value.info as ai.onnxruntime.TensorInfo).shape
    }
    val input = ai.onnxruntime.OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), bytes.asFloatBuffer(), shape)
    val output: FloatBuffer = (opened.session.run(mapOf(name to input)).get(0) as ai.onnxruntime.OnnxTensor).floatBuffer
    println(FloatArray(output.remaining()).also { output.get(it) }.joinToString(" "))
    opened.skipped.forEach(::println)
    kotlin.system.exitProcess(0)
}
"""


SIZES = """
package app

private class Phone(private val storage: String) : Context() {
    override fun getApplicationContext(): Context = this
    override fun getSystemService(name: String): Any? = null
    override fun getContentResolver(): android.content.ContentResolver? = null
    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo()
    override fun getAssets(): AssetManager = AssetManager()
    override fun getNoBackupFilesDir(): File = File(storage)
}

public fun main(arguments: Array<String>) {
    for ((height, width) in arguments.drop(1).map(String::toLong).chunked(2)) {
        val shape = longArrayOf(1, height, width)
        val x = FloatBuffer.wrap(FloatArray((height * width).toInt()) { it.toFloat() })
        val size = sizeOfM(shape)
        val filled = if (size.xShape.contentEquals(shape)) x else filledXOfM(x, shape, size.xShape)
        val input = ai.onnxruntime.OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), filled, size.xShape)
        val opened = size.open(Phone(arguments[0]))
        val output = opened.session.run(mapOf("x" to input)).get(0) as ai.onnxruntime.OnnxTensor
        val y = output.floatBuffer
        val values = FloatArray(y.remaining()).also { y.get(it) }.joinToString(" ")
        println("${size.name} ${output.info.shape.joinToString("x")} $values")
    }
    kotlin.system.exitProcess(0)
}
"""


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_an_input_goes_to_the_smallest_size_that_it_fits_into(shared: bool, tmp_path: Path) -> None:
    bundle = two_sizes(tmp_path, shared=shared)
    imports, code = ort_mobile("release", "snippet", bundle, "--for", "kotlin").out.split("\n\n", 1)
    more = "import android.content.pm.ApplicationInfo\nimport android.content.res.AssetManager"
    more += "" if "java.io.File" in imports else "\nimport java.io.File"
    head, main = SIZES.lstrip().split("\n\n", 1)
    (tmp_path / "Open.kt").write_text(f"{head}\n{imports}\n{more}\n{code}\n{main}", "utf-8")
    path, _ = compiled(tmp_path, tmp_path / "Open.kt", against=[fetched("jvm:1.28.0"), phone_classes(tmp_path)])
    axes = [str(axis) for shape in PICKED for axis in shape[1:]]
    private = tmp_path / "private"
    assets = assets_with(bundle, tmp_path)
    lines = run("java", f"-Dassets={assets}", "-cp", path, "app.OpenKt", private, *axes, folder=tmp_path).splitlines()
    assert lines == list(map(expected, PICKED))


def assets_with(bundle: Path, folder: Path) -> Path:
    """An app's assets with the models of a bundle in the folder of its name."""
    place = folder / "assets" / asset_folder(read_manifest(bundle).content.name)
    place.mkdir(parents=True)
    (place / "models").symlink_to(bundle / "models")
    return folder / "assets"


def opened(bundle: Path, folder: Path, libraries: Path, chip: str, given: Path) -> list[str]:
    """What an app in Kotlin prints that opens a bundle by its snippet on a device with a chip."""
    imports, code = ort_mobile("release", "snippet", bundle, "--for", "kotlin").out.split("\n\n", 1)
    head, main = OPEN.lstrip().split("\n\n", 1)
    more = "\n".join(line for line in main.splitlines() if line.startswith("import ") and line not in imports)
    rest = "\n".join(line for line in main.splitlines() if not line.startswith("import "))
    app = folder / "Open.kt"
    app.write_text(f"{head}\n{imports}\n{more}\n{code}\n{rest}", "utf-8")
    path, _ = compiled(folder, app, against=[fetched("jvm:1.28.0"), phone_classes(folder)])
    named = (f"-Dchip={chip}", f"-Dassets={assets_with(bundle, folder)}")
    lines = run("java", *named, "-cp", path, "app.OpenKt", libraries, folder / "private", given, folder=folder)
    return [line for line in lines.splitlines() if "LIBNATIVE" not in line]  # the plugin says so once


@pytest.mark.parametrize(
    ("chip", "reason"),
    [
        ("SM8650-AC", "qnn+SM8650: [libonnxruntime_providers_qnn.so, libQnnHtp.so, libQnnSystem.so] not in "),
        ("SM8650P", "qnn+SM8650: [libonnxruntime_providers_qnn.so, libQnnHtp.so, libQnnSystem.so] not in "),
        ("SM8550", "qnn: nothing was compiled for the NPU of SM8550"),
    ],
    ids=["no plugin", "a variant", "another chip"],
)
def test_the_code_of_a_bundle_with_contexts_opens_the_cpu_here_and_says_why(
    tmp_path: Path, chip: str, reason: str
) -> None:
    np.ones(64, np.float32).tofile(tmp_path / "x.bin")
    (tmp_path / "native").mkdir()
    lines = opened(with_contexts(tmp_path, "SM8650"), tmp_path, tmp_path / "native", chip, tmp_path / "x.bin")
    assert (lines[0], len(lines[1].split())) == ("cpu", 128)
    assert [line[: len(reason)] for line in lines[2:]] == [reason]


@pytest.mark.npu
def test_the_code_of_a_bundle_opens_its_context_in_the_simulator(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    bundle = mnist_for_the_npu(tmp_path)
    (reference,) = read_manifest(bundle).references
    given, wanted = bundle / reference.inputs[0].path, bundle / reference.outputs[0].path
    lines = opened(bundle, tmp_path, plugin_folder(), "SM8650", given)
    assert (lines[0], lines[2:]) == ("qnn+SM8650", [])
    expected = np.fromfile(wanted, np.float32)
    np.testing.assert_allclose(np.array(lines[1].split(), np.float32), expected, atol=0.02 * np.abs(expected).max())


def test_the_code_of_a_bundle_compiles_against_the_real_api_of_android(tmp_path: Path) -> None:
    with zipfile.ZipFile(fetched("android:1.29.0")) as archive:
        archive.extract("classes.jar", tmp_path)
    code = ort_mobile("release", "snippet", with_contexts(tmp_path, "SM8650", "SM8750"), "--for", "kotlin").out
    (tmp_path / "Open.kt").write_text(code, "utf-8")
    compiled(tmp_path, tmp_path / "Open.kt", against=[tmp_path / "classes.jar", *libraries()[1:]])


def test_kotlin_refuses_null_where_the_classes_do(tmp_path: Path) -> None:
    wrong = tmp_path / "Wrong.kt"
    wrong.write_text(WRONG)
    _, said = compiled(tmp_path, wrong, fails=True)
    missing = {
        line: text for line, text in REFUSED.items()
        if not any(f"Wrong.kt:{line}:" in one and text in one for one in said.splitlines())
    }  # fmt: skip
    assert missing == {}, said
