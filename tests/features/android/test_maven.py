"""Maven repositories and AI packs of bundles: what is in them, that they never change, and what is refused first."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree as ET

import msgspec
import pytest

from pipeline.features.android import library, package
from pipeline.features.android.library import release_range
from pipeline.features.android.package import asset_folder, compiled, device_groups, java_compiler
from pipeline.library.jni import PACKAGE, function_of
from tests.command import Done, ort_mobile
from tests.features.android.samples import FLAGSHIP, OLD_CHIP, bundle, needs_java, shipped, signature, two_classes
from tests.library.java_files import jar
from tests.library.library_files import library as elf_library
from tests.library.library_files import texts
from tests.stops import ACTIONS, stops
from tests.values import files_of

NAMED = ("--group", "com.example", "--version", "1.0")


def released(folder: Path, *more: str, repository: str = "repo", code: int | None = 0) -> Done:
    arguments = ["release", "android", str(folder / "bundle"), "--output", str(folder / repository), *NAMED, *more]
    with mock.patch.object(library, "compiled", compiled_once):
        return ort_mobile(*arguments, code=code)


CLASSES: dict[object, dict[str, bytes]] = {}
"""What the compiler made of sources before."""


def compiled_once(package: str, sources: Mapping[str, str], work: Path) -> Mapping[str, bytes]:
    """The classes of sources by the compiler, which takes the same ones of most bundles here: 0.7 s each time."""
    key = java_compiler(), package, *sources.items()
    if key not in CLASSES:
        made = compiled(package, sources, work).items()
        CLASSES[key] = {name: file if isinstance(file, bytes) else file.read_bytes() for name, file in made}
    return CLASSES[key]


@pytest.fixture
def java() -> None:
    needs_java()


@pytest.mark.usefixtures("java")
def test_a_repository_has_what_gradle_and_maven_read(tmp_path: Path) -> None:
    bundle(tmp_path)
    result = released(tmp_path)
    assert 'implementation("com.example:demo-app-models:1.0")' in result.text
    place = tmp_path / "repo/com/example/demo-app-models/1.0"
    stem = "demo-app-models-1.0"
    module = json.loads((place / f"{stem}.module").read_bytes())
    api = module["variants"][0]
    assert api["dependencies"] == [{
        "group": "com.microsoft.onnxruntime", "module": "onnxruntime-android",
        "version": {"strictly": "[1.28.0,1.29)", "prefers": "1.28.0"},
    }]  # fmt: skip
    aar = (place / f"{stem}.aar").read_bytes()
    assert api["files"][0]["sha512"] == hashlib.sha512(aar).hexdigest()
    assert api["files"][0]["size"] == len(aar)
    pom = (place / f"{stem}.pom").read_text()
    assert "do_not_remove: published-with-gradle-metadata" in pom
    assert ET.fromstring(pom)[0].text == "4.0.0"
    for file, content in files_of(tmp_path / "repo").items():
        if not file.endswith((".md5", ".sha1", ".sha256", ".sha512")):
            for name in ("md5", "sha1", "sha256", "sha512"):
                said = (tmp_path / "repo" / f"{file}.{name}").read_text()
                assert said == hashlib.new(name, content).hexdigest()


@pytest.mark.usefixtures("java")
def test_the_aar_has_the_model_uncompressed_its_classes_alone_and_the_keep_rule(tmp_path: Path) -> None:
    bundle(tmp_path)
    released(tmp_path, "--package", "org.demo.ml")
    with zipfile.ZipFile(next(tmp_path.rglob("*.aar"))) as aar:
        model = aar.getinfo("assets/ort_mobile/com.example/demo-app-models/m.basic-fixed.ort")
        assert model.compress_type == zipfile.ZIP_STORED
        assert aar.read(model) == (tmp_path / "bundle/models/m.basic-fixed.ort").read_bytes()
        assert "-keep class ai.onnxruntime.** { *; }" in aar.read("proguard.txt").decode()
        manifest = ET.fromstring(aar.read("AndroidManifest.xml"))
        assert manifest.get("package") == "org.demo.ml"
        assert list(manifest[0].attrib.values()) == ["27"]
        (tmp_path / "classes.jar").write_bytes(aar.read("classes.jar"))
    with zipfile.ZipFile(tmp_path / "classes.jar") as classes:
        assert {name.rpartition("/")[0] for name in classes.namelist()} == {"org/demo/ml"}


def test_no_two_packages_have_one_folder_of_assets_and_none_has_one_that_builds_leave_out() -> None:
    named = [("a.b", "c.d"), ("a", "b.c.d"), ("a.b.c", "d"), ("a", "d"), ("a", "D"), ("a", "-d-"), ("a-d", "-")]
    named += [(group, name) for group in ("_x", "CVS") for name in ("_y", "y", "cvs", "y.scc", "Y.SCC", "thumbs.db")]
    folders = [asset_folder(*names) for names in named]
    assert len(set(folders)) == len(named)
    parts = {part for folder in folders for part in folder.lower().split("/")}
    assert not [one for one in parts if one.startswith((".", "_")) or one.endswith((".scc", "~"))]
    assert not parts & {"cvs", "thumbs.db", "picasa.ini"}


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_the_app_is_told_to_store_the_models_that_are_mapped(tmp_path: Path) -> None:
    path, ort, onnx = (
        shipped("path", loading="path"), shipped("ort"), shipped("onnx", file="models/onnx.basic-fixed.onnx"),
    )  # fmt: skip
    told = []
    for number, ships in enumerate(((path,), (path, ort), (onnx,), (path, ort, onnx))):
        place = tmp_path / str(number)
        place.mkdir()
        bundle(place, ships, [signature(one.model) for one in ships])
        told.append(re.findall("noCompress .*(?= } })", released(place).text))
    assert told == [[], ['noCompress += "ort"'], ['noCompress += "onnx"'], ['noCompress += listOf("onnx", "ort")']]


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_packages_of_one_model_have_no_path_in_common_that_an_app_merges(tmp_path: Path) -> None:
    bundle(tmp_path)
    for group, artifact in (("com.example", "demo"), ("com.example", "demo-v2"), ("org.other", "demo")):
        released(tmp_path, "--group", group, "--artifact", artifact)
    seen: list[str] = []
    for aar in (tmp_path / "repo").rglob("*.aar"):
        with zipfile.ZipFile(aar) as archive, archive.open("classes.jar") as jar, zipfile.ZipFile(jar) as classes:
            seen += [name for name in archive.namelist() if name.startswith(("assets/", "jni/", "res/"))]
            seen += classes.namelist()
            seen.append(str(ET.fromstring(archive.read("AndroidManifest.xml")).get("package")))
    assert len(set(seen)) == len(seen) > 9


@pytest.mark.usefixtures("java")
def test_every_file_of_the_table_of_devices_is_in_the_aar_once(tmp_path: Path) -> None:
    two_classes(tmp_path)
    released(tmp_path)
    with zipfile.ZipFile(next(tmp_path.rglob("*.aar"))) as aar:
        models = [name for name in aar.namelist() if name.startswith("assets/")]
        place = "assets/ort_mobile/com.example/demo-app-models"
        assert models == [f"{place}/m.basic-fixed.ort", f"{place}/m.layout-fixed.ort"]
    with zipfile.ZipFile(next(tmp_path.rglob("*-sources.jar"))) as found:
        text = found.read("com/example/demo_app_models/M.java").decode()
    assert 'device.fits("Qualcomm SM8550", "arm64-v8a", 31)' in text


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_telemetry_is_switched_off_before_onnx_runtime_is_loaded_where_that_is_asked_for(tmp_path: Path) -> None:
    bundle(tmp_path)
    texts = {}
    for repository, more in (("plain", ()), ("quiet", ("--telemetry", "off"))):
        released(tmp_path, *more, repository=repository)
        with zipfile.ZipFile(next((tmp_path / repository).rglob("*-sources.jar"))) as found:
            text = found.read("com/example/demo_app_models/ModelFile.java").decode()
        texts[repository] = text
        pom = next((tmp_path / repository).rglob("*.pom")).read_text()
        assert ("telemetry off" in pom) == (repository == "quiet")
    assert "setTelemetry" not in texts["plain"]
    quiet = texts["quiet"]
    assert (
        quiet.index("Os.setenv") < quiet.index("= OrtEnvironment.getEnvironment()") < quiet.index("setTelemetry(false)")
    )


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_the_same_bundle_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    bundle(tmp_path)
    released(tmp_path)
    other = tmp_path / "another place ü"
    other.mkdir()
    (tmp_path / "bundle").rename(other / "bundle")
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "release",
        "android",
        str(other / "bundle"),
        "--output",
        str(other / "repo"),
    ]
    environment = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "HOME": str(other)}
    time.sleep(2 - time.time() % 2)  # ZIP files have times of two seconds
    subprocess.run([*command, *NAMED], check=True, umask=0o077, env=environment, capture_output=True)
    assert files_of(other / "repo") == files_of(tmp_path / "repo")


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_a_published_version_never_changes(tmp_path: Path) -> None:
    bundle(tmp_path)
    released(tmp_path)
    before = files_of(tmp_path / "repo")
    again = released(tmp_path)
    assert again.text.startswith("unchanged")
    changed = released(tmp_path, "--package", "org.demo.ml", code=1)
    assert "is published already, with other content" in changed.err
    assert files_of(tmp_path / "repo") == before


INDEX = "com/example/demo-app-models/maven-metadata.xml"


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("lost", ["", ".sha1", ".sha512"])
def test_an_index_that_a_killed_process_did_not_write_is_written_by_the_next(tmp_path: Path, lost: str) -> None:
    bundle(tmp_path)
    released(tmp_path)
    whole = files_of(tmp_path / "repo")
    index = tmp_path / "repo" / f"{INDEX}{lost}"
    index.write_text("of an earlier version")
    for place in (index, index.with_name("maven-metadata.xml")):
        place.with_name(f".{place.name}.abcd_123.part").write_text("half")
    again = released(tmp_path)
    assert again.text.startswith("unchanged")
    assert files_of(tmp_path / "repo") == whole


@pytest.mark.every_call
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_publication_that_is_stopped_is_ended_by_the_next(tmp_path: Path, action: str) -> None:
    start = tmp_path / "start"
    start.mkdir()
    bundle(start)
    released(start)
    words = ("release", "android", "bundle", "--output", "repo", "--group", "com.example", "--version", "1.1")
    left = stops(tmp_path, (*words, "--ai-pack", "pack"), (action,))
    whole, versions = files_of(left[-1].again), {"1.0", "1.1"}
    assert len(left) > 60
    for stop in left:
        assert not stop.traced, stop.name
        assert (files_of(stop.again), stop.again_code) == (whole, 0), stop.name
        assert not list(stop.again.rglob(".*")), stop.name
        assert {path.parent.name for path in stop.after.rglob("1.*/*.pom")} <= versions
    assert {one.text for one in ET.fromstring(whole[f"repo/{INDEX}"]).iter("version")} == versions


def test_versions_that_are_published_at_once_are_all_in_the_index(tmp_path: Path) -> None:
    def publish(number: int) -> tuple[bool, ...]:
        named = library.maven_module("com.example", "demo-app-models", f"1.{number}")
        files = {".aar": lambda path: path.write_bytes(b"models")}
        return library.publish([replace(named, files=files)], tmp_path)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(publish, range(24))) == [(True,)] * 24
    files = files_of(tmp_path)
    assert {one.text for one in ET.fromstring(files[INDEX]).iter("version")} == {f"1.{number}" for number in range(24)}
    for name in ("md5", "sha1", "sha256", "sha512"):
        assert files[f"{INDEX}.{name}"].decode() == hashlib.new(name, files[INDEX]).hexdigest()
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_the_index_lists_every_version_in_order(tmp_path: Path) -> None:
    bundle(tmp_path)
    for version in ("1.10", "1.9", "1.9-rc1"):
        released(tmp_path, "--version", version)
    index = ET.parse(tmp_path / "repo/com/example/demo-app-models/maven-metadata.xml")
    assert [one.text for one in index.iter("version")] == ["1.9", "1.9-rc1", "1.10"]


@pytest.mark.long
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("more", "asked"),
    [({"ort_release": "1.28"}, "[1.28,1.29)"), ({"ort_release": "1.28", "library": "android:1.28.0"}, "1.28.0")],
)
def test_a_range_is_a_warning_and_a_library_of_the_target_pins_the_version(
    tmp_path: Path, more: dict[str, str], asked: str
) -> None:
    bundle(tmp_path, (shipped(**more),))
    done = released(tmp_path)
    assert f"<version>{asked}</version>" in next((tmp_path / "repo").rglob("*.pom")).read_text()
    assert ('pin it, name the version in the target, as in library = "android:1.28.0"' in done.err) == (asked[0] == "[")


def test_ranges_end_below_the_next_minor_release() -> None:
    assert (release_range("1.29"), release_range("1.29.1")) == ("[1.29,1.30)", "[1.29.1,1.30)")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--group", "com..example"), "'com..example' cannot be a group"),
        (("--group", "9com"), "'9com' cannot be a group"),
        (("--artifact", "../up"), "'../up' cannot be an artifact"),
        (("--version", "1/2"), "'1/2' cannot be a version"),
        (("--version", "1.0-SNAPSHOT"), "'1.0-SNAPSHOT' is no version that stays the same"),
        (("--version", "latest.release"), "'latest.release' is no version that stays the same"),
        (("--version", "LATEST"), "'LATEST' is no version that stays the same"),
        (("--version", "release"), "'release' is no version that stays the same"),
        (("--package", "models"), "'models' cannot be the Java package"),
        (("--package", "com.class.x"), "cannot be the Java package"),
        (("--package", "java.lang"), "'java.lang' cannot be the Java package"),
        (("--package", "ai.onnxruntime"), "cannot be the Java package"),
        (("--target", "ios"), "no target 'ios' for Android"),
    ],
)
def test_names_that_tools_refuse_are_refused_first(tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    bundle(tmp_path)
    result = released(tmp_path, *more, code=2)
    assert message in result.err
    assert not (tmp_path / "repo").exists()


def test_a_bundle_without_a_target_for_android_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path, ships=(shipped(platform="ios"),))
    assert "nothing in this bundle is for Android" in released(tmp_path, code=2).err


def test_one_of_several_targets_must_be_named(tmp_path: Path) -> None:
    bundle(tmp_path, ships=(shipped(), shipped(target="tablet")))
    assert "name one with --target: phone, tablet" in released(tmp_path, code=2).err


def test_two_models_of_one_class_are_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped("a.b"), shipped("A-b")), (signature("a.b"), signature("A-b")))
    assert "a.b and A-b would both have the class AB" in released(tmp_path, code=2).err
    assert not (tmp_path / "repo").exists()


def test_models_larger_than_a_store_allows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "STORE_BYTES", 100)
    bundle(tmp_path)
    result = released(tmp_path, code=4)
    assert "Google Play allows 100 bytes" in result.err
    assert not (tmp_path / "repo").exists()


def test_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path)
    (tmp_path / "bundle/models/m.basic-fixed.ort").write_bytes(b"x")
    released(tmp_path, code=4)
    assert not (tmp_path / "repo").exists()


def test_without_a_compiler_the_package_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = released(tmp_path, code=3)
    assert "openjdk-17-jdk-headless" in result.err
    assert not list((tmp_path / "repo").rglob("*.aar"))


ELF = b"\x7fELF\x02\x01" + bytes(58)
PARTS = {"AndroidManifest.xml": b"<manifest/>", "classes.jar": b"", "jni/arm64-v8a/libonnxruntime.so": ELF}
JNI = "libonnxruntime4j_jni.so"
TENSOR = f"{PACKAGE}/OnnxTensor"


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("members", "why"),
    [
        (None, "libonnxruntime.so alone lacks the Java classes and libonnxruntime4j_jni.so"),
        ({}, "it has no classes.jar, no AndroidManifest.xml"),
        ({name: text for name, text in PARTS.items() if not name.startswith("jni")}, "it has no library for any ABI"),
        (PARTS, f"it has no {JNI} for arm64-v8a"),
        ({**PARTS, f"jni/arm64-v8a/{JNI}": ELF, f"jni/x86_64/{JNI}": ELF}, "it has no libonnxruntime.so for x86_64"),
        ({**PARTS, f"jni/arm64-v8a/{JNI}": ELF}, "it has nothing for x86, for which the models were released"),
    ],
)
def test_what_is_no_whole_runtime_is_refused(tmp_path: Path, members: dict[str, bytes] | None, why: str) -> None:
    bundle(tmp_path, ships=(shipped(abis=("arm64-v8a", "x86")),))
    given = tmp_path / "given.aar"
    given.write_bytes(ELF)
    if members is not None:
        with zipfile.ZipFile(given, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
    result = released(tmp_path, "--runtime", str(given), code=2)
    assert why in result.err
    assert not (tmp_path / "repo").exists()


@pytest.mark.usefixtures("java")
def test_a_runtime_with_a_library_that_cannot_be_read_is_refused_first(tmp_path: Path) -> None:
    bundle(tmp_path, ships=(shipped(abis=("arm64-v8a",)),))
    functions = ("OrtGetApiBase", function_of(TENSOR, "close"))
    whole = elf_library("arm64-v8a", extra=texts("1.28.0"), functions=functions)
    parts = {**PARTS, "classes.jar": jar({TENSOR: [("close", "()V", True)]})}
    given = tmp_path / "given.aar"
    with zipfile.ZipFile(given, "w") as archive:
        for name in (*parts, f"jni/arm64-v8a/{JNI}", "jni/arm64-v8a/libother.so"):
            archive.writestr(name, whole if name.startswith("jni") else parts[name])
    content = bytearray(given.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1  # the last one is encrypted
    given.write_bytes(content)
    result = released(tmp_path, "--runtime", str(given), code=3)
    assert "this archive cannot be unpacked" in result.err
    assert not (tmp_path / "repo").exists()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("methods", "functions", "code", "why"),
    [
        (("getArray",), ("getArray",), 0, ""),
        (
            ("getArray", "close"),
            ("close",),
            4,
            "no native library has a function for ai.onnxruntime.OnnxTensor.getArray",
        ),
        ((), ("close",), 2, "its classes.jar has no classes of ONNX Runtime"),
        (("close",), (), 2, f"{JNI} has no function for its Java classes"),
    ],
)
def test_a_runtime_whose_classes_are_of_another_release_is_refused(
    methods: tuple[str, ...], functions: tuple[str, ...], code: int, why: str, tmp_path: Path
) -> None:
    bundle(tmp_path, ships=(shipped(abis=("arm64-v8a",)),))
    named = tuple(function_of(TENSOR, name) for name in functions)
    members = {
        **PARTS, "classes.jar": jar({TENSOR: [(name, "()V", True) for name in methods]}),
        "jni/arm64-v8a/libonnxruntime.so": elf_library("arm64-v8a", extra=texts("1.28.0")),
        f"jni/arm64-v8a/{JNI}": elf_library("arm64-v8a", extra=texts("1.28.0"), functions=(*named, "JNI_OnLoad")),
    }  # fmt: skip
    with zipfile.ZipFile(tmp_path / "given.aar", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    result = released(tmp_path, "--runtime", str(tmp_path / "given.aar"), code=code)
    assert why in result.err
    assert (tmp_path / "repo").exists() is (code == 0)


CONFIG = "{http://schemas.android.com/apk/config}"


def test_each_group_of_devices_gets_what_it_may_open(tmp_path: Path) -> None:
    needs_java()
    two_classes(tmp_path)
    released(tmp_path, "--ai-pack", str(tmp_path / "models_pack"))
    pack = tmp_path / "models_pack"
    folder = "src/main/assets/ort_mobile/com.example/demo-app-models"
    own, other = f"{folder}#group_qualcomm_sm8550", f"{folder}#group_other"
    assert {name for name in files_of(pack) if name.endswith(".ort")} == {
        f"{own}/m.basic-fixed.ort",
        f"{own}/m.layout-fixed.ort",
        f"{other}/m.basic-fixed.ort",
    }
    (group,) = ET.parse(pack / "device_targeting_config.xml").getroot()
    assert (group.tag, group.attrib) == (f"{CONFIG}device-group", {"name": "qualcomm_sm8550"})
    assert [chip.attrib for chip in group.iter(f"{CONFIG}system-on-chip")] == [
        {"manufacturer": "Qualcomm", "model": "SM8550"}
    ]
    assert 'packName = "models_pack"' in (pack / "build.gradle.kts").read_text()
    assert 'deviceTargetingConfig = file("../models_pack/' in (pack / "README.md").read_text()
    with zipfile.ZipFile(next((tmp_path / "repo").rglob("*.aar"))) as aar:
        assert not any(name.startswith("assets") for name in aar.namelist())


def test_models_for_all_devices_need_no_groups(tmp_path: Path) -> None:
    needs_java()
    bundle(tmp_path)
    (tmp_path / "models_pack").mkdir()
    for _ in range(2):
        released(tmp_path, "--ai-pack", str(tmp_path / "models_pack"))
    assert set(files_of(tmp_path / "models_pack")) == {
        "build.gradle.kts",
        "README.md",
        "src/main/assets/ort_mobile/com.example/demo-app-models/m.basic-fixed.ort",
    }


def test_chips_that_get_the_same_share_groups_of_at_most_five(tmp_path: Path) -> None:
    chips = [msgspec.structs.replace(FLAGSHIP, chip=f"Maker X{number}") for number in range(7)]
    ships = (shipped(), shipped(file="models/fast.ort"))
    groups = device_groups(bundle(tmp_path, ships, classes=((), chips)).content, "phone")
    assert [(name.rpartition("_")[0], len(chips)) for name, chips, _ in groups] == [
        ("maker_x0", 5), ("maker_x5", 2), ("", 0)
    ]  # fmt: skip
    basic, fast = "models/m.basic-fixed.ort", "models/fast.ort"
    assert [files for _, _, files in groups] == [(fast, basic), (fast, basic), (basic,)]
    # Google Play does not know the chips of older devices: all others get what these may open
    groups = device_groups(bundle(tmp_path, ships, classes=((), (*chips, OLD_CHIP))).content, "phone")
    assert [(name, files) for name, _, files in groups] == [("other", (fast, basic))]


def test_groups_of_one_name_have_the_same_chips_in_every_pack(tmp_path: Path) -> None:
    """An app has one file of groups for all of its packs."""
    ships, chips_of = (shipped(), shipped(file="models/fast.ort")), dict[str, set[tuple[tuple[str, str], ...]]]()
    made = (("X1",), ("X1", "X2"), ("X1", "X3"), ("X1", "X2"), ("X1.", "X2"), ("X-1",), ("X_1",))
    for number, models in enumerate(made):
        classes = [msgspec.structs.replace(FLAGSHIP, chip=f"Maker {model}") for model in models]
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, chips, _ in device_groups(bundle(folder, ships, classes=((), classes)).content, "phone"):
            chips_of.setdefault(name, set()).add(chips)
    assert {name: len(chips) for name, chips in chips_of.items() if len(chips) > 1} == {}
    assert len(chips_of) == len(set(made)) + 1, "and other"
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in chips_of)


@pytest.mark.parametrize(
    ("name", "limit", "message", "code"),
    [
        ("2nd", 0, "'2nd' is no name for an AI pack", 2),
        ("my-pack", 0, "'my-pack' is no name for an AI pack", 2),
        ("bundle", 0, "this folder is no AI pack of ours", 2),
        ("pack", 100, "the models of devices in the group other have", 4),
    ],
)
def test_packs_that_tools_or_stores_refuse_are_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, message: str, code: int
) -> None:
    needs_java()
    bundle(tmp_path)
    if limit:
        monkeypatch.setattr(package, "PACK_BYTES", limit)
    result = released(tmp_path, "--ai-pack", str(tmp_path / name), code=code)
    assert message in result.err
    assert not (tmp_path / "repo").exists()
    assert not (tmp_path / "pack").exists()
