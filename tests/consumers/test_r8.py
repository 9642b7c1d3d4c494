"""R8 shrinks the published classes and ONNX Runtime's: the rule in the package is what keeps the program alive."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.consumers.android import check_logits, model_file, reference, unpacked_aar
from tests.consumers.jars import classpath, jars, needs, run
from tests.consumers.releases import RELEASE
from tests.features.android.jvm import fetched

pytestmark = pytest.mark.consumer

R8 = "com.android.tools:r8:8.7.18"
SIGNATURES = "com.google.android:android:4.1.1.4"
APP = """\
-keep class app.Main { public static void main(java.lang.String[]); }
-keepclassmembers enum * { public static **[] values(); public static ** valueOf(java.lang.String); }
-dontwarn **
"""
"""What an app keeps of itself, and what Android's default rules keep of enums."""

NATIVE_METHODS = "-keepclasseswithmembernames,includedescriptorclasses class * { native <methods>; }\n"
"""What Android's default rules keep of every app."""

ENDS = ("UnsatisfiedLinkError", "NoClassDefFoundError", "SIGSEGV")
"""How a program ends whose native code does not find its Java classes (docs/facts/release_consumers.md, R.3)."""


def natives(library: Path, folder: Path) -> Path:
    """A folder with the native libraries of a JAR: its classes are not on the path of a shrunk program."""
    with zipfile.ZipFile(library) as archive:
        for name in archive.namelist():
            if name.startswith("ai/onnxruntime/native/linux-x64/"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return folder


def java_classes(library: Path, file: Path) -> Path:
    """A JAR with the Java classes of ONNX Runtime alone."""
    with zipfile.ZipFile(library) as archive, zipfile.ZipFile(file, "w") as made:
        for name in archive.namelist():
            if name.endswith(".class") and not name.startswith("META-INF/"):
                made.writestr(name, archive.read(name))
    return file


def shrunk(folder: Path, rules: dict[str, str], library: Path) -> dict[str, Path]:
    """The program with the package and ONNX Runtime as one JAR, by each set of rules."""
    tool, facade = jars(R8), unpacked_aar() / "classes.jar"
    android = jars(SIGNATURES, alone=True)
    source = Path(__file__).with_name("maven_app") / "src/main/java/app/Main.java"
    run("javac", "--release", "8", "-nowarn", "-cp", classpath(facade, library, android), "-d", folder / "app", source,
        folder=folder)  # fmt: skip
    run("javac", "-cp", classpath(tool), "-d", folder, Path(__file__).with_name("Shrink.java"), folder=folder)
    pairs: list[Path] = []
    for name, text in rules.items():
        (folder / f"{name}.pro").write_text(APP + text)
        pairs += [folder / f"{name}.pro", folder / f"{name}.jar"]
    home = Path(shutil.which("javac") or "").resolve().parents[1]
    libraries = ("--classfile", "--release", "--lib", home, "--lib", android[0])
    given = (facade, java_classes(library, folder / "ort.jar"), *(folder / "app/app").glob("*.class"))
    start = ("java", "-cp", classpath(tool, folder), "Shrink", str(len(rules)))
    run(*start, *pairs, *libraries, *given, folder=folder)
    return {name: folder / f"{name}.jar" for name in rules}


def test_the_packages_rule_alone_lets_a_shrunk_program_run(tmp_path: Path) -> None:
    needs("javac")
    library = fetched(f"jvm:{RELEASE}")
    keep = (unpacked_aar() / "proguard.txt").read_text()
    rules = {"package": keep, "none": "", "native": NATIVE_METHODS}
    programs = shrunk(tmp_path, rules, library)
    assert programs["package"].stat().st_size < (tmp_path / "ort.jar").stat().st_size
    place = tmp_path / "natives"
    place.mkdir()
    option = f"-Donnxruntime.native.path={natives(library, place)}"
    ends = {}
    for name, program in programs.items():
        command = ["java", option, "-cp", str(program), "app.Main", str(model_file()), str(reference().image)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
        )
        ends[name] = done
    check_logits(ends["package"].stdout)
    for name in ("none", "native"):
        assert ends[name].returncode != 0
        said = ends[name].stdout + ends[name].stderr
        assert any(end in said for end in ENDS), said[-2000:]
