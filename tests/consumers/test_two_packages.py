"""One app takes packages with models of one name, two versions of one among them: each class opens its own model.

The merger of assets is that of the Android Gradle plugin, in the newest release that Maven Central has.
"""

import zipfile
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.consumers.android import libraries
from tests.consumers.jars import classpath, jars, needs, run
from tests.consumers.test_packages import APP, linked
from tests.consumers.test_robolectric import on_android, robolectric
from tests.features.android.samples import CPU, bundle, shipped

pytestmark = pytest.mark.consumer

SDK_COMMON = "com.android.tools:sdk-common:25.3.0"
MANIFEST_MERGER = "com.android.tools.build:manifest-merger:25.3.0"
PROGRAMS = Path(__file__).parent
FACTORS = {("com.example", "demo"): 1.0, ("com.example", "demo-v2"): 3.0, ("org.other", "_demo"): 0.5}
"""Group and artifact of each package, and what the outputs of its model are times those of the first."""


def package(folder: Path, group: str, artifact: str) -> Path:
    """A folder with the parts of a package's AAR, whose model m has outputs of its own."""
    folder.mkdir()
    file = "models/m.basic-fixed.ort"
    bundle(folder, (shipped(runs=(CPU,)),), weights={file: FACTORS[group, artifact]})
    named = ("--group", group, "--artifact", artifact, "--package", f"{group}.{artifact.strip('_').replace('-', '_')}")
    ort_mobile("release", "android", folder / "bundle", "--output", folder / "repo", "--version", "1.0", *named)
    with zipfile.ZipFile(next((folder / "repo").rglob("*.aar"))) as archive:
        archive.extractall(folder / "aar")
    return folder / "aar"


def merged(folder: Path, packages: list[Path]) -> Path:
    """The assets of an app, merged from those of its packages."""
    path = classpath(jars(SDK_COMMON), folder)
    run("javac", "-nowarn", "-cp", path, "-d", folder, PROGRAMS / "Merge.java", folder=folder)
    run("java", "-cp", path, "Merge", folder / "merged", *(place / "assets" for place in packages), folder=folder)
    return folder / "merged"


def test_each_class_opens_its_own_model_in_one_app(tmp_path: Path) -> None:
    needs("javac", "mvn")
    packages = [package(tmp_path / artifact, group, artifact) for group, artifact in FACTORS]
    names = ("com.example.demo.M", "com.example.demo_v2.M", "org.other.demo.M")
    path = classpath(
        tmp_path / "out", robolectric(tmp_path), [place / "classes.jar" for place in packages], libraries()
    )
    run("javac", "-nowarn", "-cp", path, "-d", tmp_path / "out", PROGRAMS / "OpenAll.java", folder=tmp_path)
    assets = merged(tmp_path, packages)
    for name, words in (("stored.apk", ("-0", "ort")), ("packed.apk", ())):
        apk = linked(tmp_path, APP, name, "-A", assets, *words)
        lines = [line.split() for line in on_android(tmp_path, path, apk, "OpenAll", classes=" ".join(names))]
        assert [asset for asset, _ in lines] == [
            f"ort_mobile/{place}/m.basic-fixed.ort"
            for place in ("com.example/demo", "com.example/demo-v2", "org.other/-_demo-")
        ]
        first = float(lines[0][1])
        assert first > 0
        assert [float(value) / first for _, value in lines] == pytest.approx(list(FACTORS.values()), rel=1e-5)


def test_an_app_merges_the_manifests_of_two_packages(tmp_path: Path) -> None:
    needs("javac", "mvn")
    places = [package(tmp_path / artifact, group, artifact) for group, artifact in list(FACTORS)[:2]]
    (tmp_path / "app.xml").write_text(APP)
    given = ("--main", tmp_path / "app.xml", "--libs", classpath([place / "AndroidManifest.xml" for place in places]))
    program = ("java", "-cp", classpath(jars(MANIFEST_MERGER)), "com.android.manifmerger.Merger")
    run(*program, *given, "--out", tmp_path / "merged.xml", folder=tmp_path)
    assert 'package="com.example.app"' in (tmp_path / "merged.xml").read_text()
