"""Kotlin takes the published Java classes: nullability, the guide's example, the code of bundles, a model that runs."""

from pathlib import Path

import pytest

from pipeline.release.app_code import PICKING, kotlin
from tests.consumers.android import check_logits, guide_code, libraries, model_file, reference, unpacked_aar
from tests.consumers.jars import classpath, jars, run
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


def compiled(folder: Path, *sources: Path, fails: bool = False) -> tuple[str, str]:
    """The class path with these sources compiled, and what the compiler says."""
    compiler = jars(COMPILER)
    stdlib = [path for path in compiler if path.name.startswith("kotlin-stdlib")]
    path = classpath(unpacked_aar() / "classes.jar", libraries(), stdlib)
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
        function(f"a{number}", "path: String", "\n".join(kotlin(options, FILE).lines))
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


def test_kotlin_refuses_null_where_the_classes_do(tmp_path: Path) -> None:
    wrong = tmp_path / "Wrong.kt"
    wrong.write_text(WRONG)
    _, said = compiled(tmp_path, wrong, fails=True)
    missing = {
        line: text for line, text in REFUSED.items()
        if not any(f"Wrong.kt:{line}:" in one and text in one for one in said.splitlines())
    }  # fmt: skip
    assert missing == {}, said
