"""Gradle's own resolver takes the published package: one line brings all, and what does not fit fails there."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.android_host.bundles import bundle_of
from tests.android_host.conftest import fetch
from tests.command import ort_mobile
from tests.consumers.jars import classpath, jars, needs, run
from tests.consumers.releases import EXAMPLE, NOTATION, made_once, repository

pytestmark = pytest.mark.consumer

GRADLE = (
    "dev.gradleplugins:gradle-api:8.10",
    *(f"org.codehaus.groovy:{name}:3.0.22" for name in (
        "groovy", "groovy-json", "groovy-xml", "groovy-templates", "groovy-nio", "groovy-ant",
    )),
    "org.jetbrains.kotlin:kotlin-stdlib:1.9.24", "org.jetbrains.kotlin:kotlin-reflect:1.9.24",
)  # fmt: skip
OPENED = ("java.lang", "java.util", "java.lang.invoke")
STOCK = ("com.microsoft.onnxruntime", "onnxruntime-android")
RELEASES = ("1.20.0", "1.28.0", "1.28.1", "1.29.0", "1.31.0")
OURS = ":".join(NOTATION)
RUNTIME = "1.29.0"
"""The release of which a package has the whole Android library."""


class Case(NamedTuple):
    """What an app depends on, and how it selects of modules with the same capability."""

    notations: tuple[str, ...]
    select: str = ""


CASES = {
    "alone": Case((OURS,)),
    **{release: Case((OURS, f"{STOCK[0]}:{STOCK[1]}:{release}")) for release in (*RELEASES, "1.20.0!!")},
}


def stock(folder: Path) -> None:
    """A repository with the names of releases of ONNX Runtime for Android: Gradle opens no AAR to resolve it."""
    group, artifact = STOCK
    place = folder / group.replace(".", "/") / artifact
    for release in RELEASES:
        (place / release).mkdir(parents=True)
        (place / release / f"{artifact}-{release}.aar").touch()
        (place / release / f"{artifact}-{release}.pom").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{release}</version>"
            "<packaging>aar</packaging></project>"
        )
    versions = "".join(f"<version>{release}</version>" for release in RELEASES)
    (place / "maven-metadata.xml").write_text(
        f"<metadata><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<versioning><versions>{versions}</versions></versioning></metadata>"
    )


def resolve(folder: Path, cases: Mapping[str, Case], models: Path) -> dict[str, str]:
    """What Gradle says of each: a line for each file, or why it failed."""
    needs("javac")
    path = classpath(jars(*GRADLE, alone=True), folder)
    places = f"{models.as_uri()} {made_once('stock', stock).as_uri()}"
    lines = [f"{name}|{places}|{' '.join(case.notations)}|{case.select}" for name, case in cases.items()]
    (folder / "cases").write_text("\n".join(lines))
    run("javac", "-nowarn", "-cp", path, "-d", folder, Path(__file__).with_name("Resolve.java"), folder=folder)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    prefs = "--add-opens=java.prefs/java.util.prefs=ALL-UNNAMED"
    run("java", f"-Duser.home={folder}", *opened, prefs, "-cp", path, "Resolve", folder, folder=folder)
    return {name: (folder / name).read_text() for name in cases}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return resolve(tmp_path_factory.mktemp("gradle"), CASES, repository())


def found(release: str) -> list[str]:
    """The lines of the package, by its module metadata, and of the stock library in a release."""
    library = f"onnxruntime-android-{release}.aar {STOCK[0]}:{STOCK[1]}:{release} configuration default"
    return [f"mnist-models-1.0.aar {OURS} variant runtimeElements", library]


def test_one_line_brings_the_models_and_the_release_that_they_were_tested_with(said: dict[str, str]) -> None:
    assert said["alone"].splitlines() == found("1.28.0")


def test_a_newer_patch_is_taken_and_an_older_release_is_raised(said: dict[str, str]) -> None:
    assert said["1.28.1"].splitlines() == found("1.28.1")
    assert said["1.20.0"].splitlines() == found("1.28.0")


@pytest.mark.parametrize("release", ["1.29.0", "1.31.0"])
def test_another_release_fails_and_both_paths_are_named(said: dict[str, str], release: str) -> None:
    paths = (
        f"':test:unspecified' --> '{STOCK[0]}:{STOCK[1]}:{release}'",
        f"'{OURS}' (runtimeElements) --> '{STOCK[0]}:{STOCK[1]}:{{strictly [1.28.0,1.29); prefer 1.28.0}}'",
    )
    assert said[release].startswith("FAILED")
    assert [path for path in paths if path not in said[release]] == [], said[release]


def test_only_what_an_app_itself_demands_strictly_overrules_the_range(said: dict[str, str]) -> None:
    assert said["1.20.0!!"].splitlines() == found("1.20.0")


def test_two_runtimes_fail_with_the_conflict_named_until_the_app_selects_one(tmp_path: Path) -> None:
    needs("javac")
    fetch(RUNTIME)
    made = bundle_of(tmp_path / "demo", EXAMPLE / "mnist.onnx", ort_release=RUNTIME)
    named = ("--group", "com.example", "--artifact", "demo", "--version", "1.0", "--runtime", f"android:{RUNTIME}")
    said = ort_mobile("release", "android", made, "--output", tmp_path / "repo", *named, cwd=tmp_path).out
    rule = f'withCapability("{STOCK[0]}", "{STOCK[1]}") {{\n            select("com.example:demo-runtime:1.0")'
    assert rule in said
    both = ("com.example:demo:1.0", f"{STOCK[0]}:{STOCK[1]}:{RUNTIME}")
    select = f"{STOCK[0]}:{STOCK[1]} com.example:demo-runtime:1.0"
    found = resolve(tmp_path, {"own": Case(both[:1]), "both": Case(both), "one": Case(both, select)}, tmp_path / "repo")
    ours = [f"{name}-1.0.aar com.example:{name}:1.0 variant runtimeElements" for name in ("demo", "demo-runtime")]
    assert found["own"].splitlines() == found["one"].splitlines() == ours
    assert "Cannot select module with conflict on capability" in found["both"]
    assert f"{STOCK[0]}:{STOCK[1]}" in found["both"]
    assert "com.example:demo-runtime:1.0" in found["both"]
