"""The compiled parts of the APK of packages, out of their sources: the dex by D8, the binary manifest by aapt2."""

import tempfile
import zipfile
from pathlib import Path

from tests.consumers.android import FRAMEWORK, SANDBOX, aapt2, framework_of_aapt2
from tests.consumers.jars import classpath, jars, needs, run

SOURCES = Path(__file__).resolve().parents[1] / "pipeline/features/away/runner"
D8 = "com.android.tools:r8:8.7.18"
OLDEST = "27"
"""The API level of the manifest, which is that of the probe."""

DEX, MANIFEST = "classes.dex", "AndroidManifest.bin"


def make_dex(folder: Path) -> bytes:
    """classes.dex of PackageRunner.java."""
    needs("javac")
    framework = jars(FRAMEWORK, SANDBOX, alone=True)
    classes = folder / "classes"
    javac = ("javac", "-nowarn", "-Xlint:-options", "-g:none", "--release", "8", "-cp", classpath(framework))
    run(*javac, "-d", classes, SOURCES / "PackageRunner.java", folder=folder)
    d8 = ("java", "-cp", classpath(jars(D8)), "com.android.tools.r8.D8", "--release", "--min-api", OLDEST)
    run(*d8, "--output", folder, *sorted(classes.rglob("*.class")), folder=folder)
    return (folder / DEX).read_bytes()


def make_manifest(folder: Path) -> bytes:
    """The binary form of AndroidManifest.xml."""
    link = (aapt2(folder), "link", "-o", "base.apk", "-I", framework_of_aapt2())
    run(*link, "--manifest", SOURCES / "AndroidManifest.xml", folder=folder)
    with zipfile.ZipFile(folder / "base.apk") as apk:
        return apk.read("AndroidManifest.xml")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        (SOURCES / DEX).write_bytes(make_dex(Path(name)))
        (SOURCES / MANIFEST).write_bytes(make_manifest(Path(name)))
