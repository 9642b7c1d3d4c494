"""Custom operators in apps for iOS and macOS: libraries that a Mach-O compiler made, in bundles and Swift packages."""

import hashlib
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from device_runner.custom_ops import read_libraries
from device_runner.probe.elf import FAT
from tests.command import ort_mobile
from tests.custom_ops.apple import compiled, framework
from tests.custom_ops.samples import library, model
from tests.features.apple.frameworks import DYLIB, fat, image
from tests.features.apple.test_facade import mistakes
from tests.release.test_bundle import reseal
from tests.values import files_of

pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed"),
    pytest.mark.usefixtures("own_workers"),
]

PHONE, SIMULATOR, MAC = "aarch64-ios", "aarch64-ios-simulator", "aarch64-macos"
CONFIG = """
name = "twice"
custom_ops = [{libraries}]
[[models]]
path = "twice.onnx"
[[targets]]
name = "app"
platform = "{platform}"
ort_release = "1.24"
min_os_version = "{lowest}"
[[runs]]
provider = "cpu"
[variants]
levels = ["basic"]
styles = ["fixed"]
"""


def job(work: Path, *libraries: Path | str, platform: str = "ios", lowest: str = "15.1", code: int = 0) -> str:
    """Make a bundle of the model with the host's library and these; what the job says."""
    model(work / "twice.onnx")
    shutil.copy(library(), work / "libtwice.so")
    listed = ", ".join(f'"{Path(file).name}"' for file in ("libtwice.so", *libraries))
    (work / "twice.toml").write_text(CONFIG.format(libraries=listed, platform=platform, lowest=lowest))
    return ort_mobile("run", "twice.toml", "--convert-only", cwd=work, code=code).text


@pytest.fixture(scope="module")
def phones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a job with a framework for phones."""
    folder = tmp_path_factory.mktemp("phones")
    job(folder, framework(folder, PHONE))
    return folder


def package(work: Path) -> dict[str, str]:
    ort_mobile("release", "apple", "output/twice/bundle", "--output", "package", cwd=work)
    return {name: content.decode(errors="replace") for name, content in files_of(work / "package").items()}


def test_a_bundle_for_phones_has_the_framework_and_its_package_links_it(tmp_path: Path) -> None:
    zipped = framework(tmp_path, PHONE, SIMULATOR)
    job(tmp_path, zipped)
    bundle = tmp_path / "output/twice/bundle"
    assert (bundle / "custom_ops/ios/all/twice.xcframework.zip").read_bytes() == zipped.read_bytes()
    readme = (bundle / "README.md").read_text()
    assert "try options.registerCustomOps(functionPointer: RegisterCustomOps)" in readme
    assert "Ort::ThrowOnError(RegisterCustomOps(options, OrtGetApiBase()));" in readme
    ort_mobile("bundle", "verify", bundle, cwd=tmp_path)
    files = package(tmp_path)
    with zipfile.ZipFile(zipped) as archive:
        code = archive.read(f"twice.xcframework/{PHONE}/libtwice.a")
    assert (tmp_path / f"package/twice.xcframework/{PHONE}/libtwice.a").read_bytes() == code
    manifest = files["Package.swift"]
    assert '.binaryTarget(name: "TwiceModelsOperatorsBinary", path: "twice.xcframework")' in manifest
    assert 'package: "onnxruntime-swift-package-manager"), "TwiceModelsOperators"]' in manifest
    assert mistakes(manifest) == []
    assert "s.vendored_frameworks = 'twice.xcframework'" in files["TwiceModels.podspec"]
    header = files["Sources/TwiceModelsOperators/include/TwiceModelsOperators.h"]
    assert "struct OrtStatus *RegisterCustomOps(" in header
    source = files["Sources/TwiceModels/Twice.swift"]
    assert "#if SWIFT_PACKAGE\nimport TwiceModelsOperators\n#endif" in source
    assert "try options.registerCustomOps(functionPointer: RegisterCustomOps)" in source
    assert mistakes(source) == []
    assert ort_mobile("release", "apple", bundle, "--output", "package", cwd=tmp_path).out.startswith("unchanged")


def test_a_folder_in_the_place_of_the_library_writes_no_ruby_of_its_own(phones: Path, tmp_path: Path) -> None:
    """CocoaPods runs what a podspec says: only names out of a ZIP are plain."""
    shutil.copytree(phones, tmp_path, dirs_exist_ok=True)
    bundle, name = tmp_path / "output/twice/bundle", "a'.chop;#.xcframework"
    library = bundle / "custom_ops/ios/all/twice.xcframework.zip"
    with zipfile.ZipFile(library) as archive:
        members = {member.partition("/")[2]: archive.read(member) for member in archive.namelist()}
    library.unlink()

    def relist(document: dict[str, Any]) -> None:
        files = [row for row in document["content"]["files"] if not row["path"].endswith(".zip")]
        for member, content in members.items():
            path = f"custom_ops/ios/all/{name}/{member}"
            (bundle / path).parent.mkdir(parents=True, exist_ok=True)
            (bundle / path).write_bytes(content)
            files.append({"path": path, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        document["content"]["files"] = files

    reseal(bundle, relist)
    refused = ort_mobile("release", "apple", bundle, "--output", "package", cwd=tmp_path, code=4)
    assert "unreadable: manifest.json" in refused.err
    assert not (tmp_path / "package").exists()


def test_a_mac_links_a_dylib_in_a_framework(tmp_path: Path) -> None:
    job(tmp_path, framework(tmp_path, MAC), platform="macos", lowest="15.0")
    assert (tmp_path / "output/twice/bundle/custom_ops/macos/all/twice.xcframework.zip").is_file()
    assert f"twice.xcframework/{MAC}/libtwice.dylib" in package(tmp_path)


def test_react_native_is_told_that_it_lacks_them(phones: Path) -> None:
    for language in ("react-native", "maui"):
        done = ort_mobile("release", "snippet", "output/twice/bundle", "--for", language, cwd=phones)
        assert "without custom operators" in done.err
        assert "xcframework.zip" not in done.out


@pytest.mark.parametrize(
    ("targets", "lowest", "platform", "message"),
    [
        ([], "15.0", "ios", "no library of custom operators for ios arm64-v8a as an xcframework"),
        ([SIMULATOR], "15.0", "ios", "there are those for linux x86_64, ios-simulator arm64-v8a as an xcframework"),
        ([PHONE], "15.0", "macos", "no library of custom operators for macos arm64-v8a as an xcframework"),
    ],
)
def test_a_library_for_another_system_is_refused_before_anything_is_written(
    tmp_path: Path, targets: list[str], lowest: str, platform: str, message: str
) -> None:
    zipped = [framework(tmp_path, *targets, lowest=lowest)] if targets else []
    assert message in job(tmp_path, *zipped, platform=platform, code=3)
    assert not (tmp_path / "output").exists()


def test_an_app_links_one(tmp_path: Path) -> None:
    both = [framework(tmp_path, PHONE, name=name) for name in ("a", "b")]
    assert "can link one library of custom operators, and 2 fit" in job(tmp_path, *both, code=2)


def test_a_framework_for_newer_systems_than_the_app_is_refused(tmp_path: Path) -> None:
    job(tmp_path, framework(tmp_path, PHONE, lowest="17.0"))
    done = ort_mobile("release", "apple", "output/twice/bundle", "--output", "package", cwd=tmp_path, code=2)
    assert "twice.xcframework needs iOS 17.0 or higher" in done.err
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(
    ("harm", "code", "message"),
    [
        (lambda text: text.replace(b"_RegisterCustomOps", b"_RegisterSomething"), 3, "no library in it exports"),
        (lambda text: text[:-40], 3, "a member of the archive is damaged"),
        (lambda text: text.replace(b"`\n", b"  ", 1), 3, "a member of the archive is damaged"),
        (lambda text: text[:56] + b"x" + text[57:], 3, "a member of the archive is damaged"),
        (lambda text: b"\x7fELF" + text, 3, "it is no Mach-O file of 64 bits"),
        (lambda text: FAT + struct.pack(">6I", 1, 0, 0, 0, 28, 0) + text, 3, "it is no Mach-O file of 64 bits"),
    ],
)
def test_what_is_no_code_for_phones_is_refused(tmp_path: Path, harm: object, code: int, message: str) -> None:
    assert callable(harm)
    zipped = framework(tmp_path, PHONE)
    with zipfile.ZipFile(zipped) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, harm(content) if name.endswith(".a") else content)
    assert message in job(tmp_path, zipped, code=code)
    assert not (tmp_path / "output").exists()


def test_a_framework_whose_list_says_something_else_is_refused(tmp_path: Path) -> None:
    zipped = framework(tmp_path, PHONE)
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr("other.xcframework/Info.plist", b"")
    assert "the ZIP has 2 folders NAME.xcframework" in job(tmp_path, zipped, code=2)
    assert not (tmp_path / "output").exists()


def test_folders_and_bare_archives_are_told_what_to_be(tmp_path: Path) -> None:
    archive = compiled(tmp_path, PHONE)
    (tmp_path / "twice.xcframework").mkdir()
    for given, message in ((archive, "not a little-endian ELF file"), ("twice.xcframework", "zip -r")):
        done = ort_mobile("convert", "x.onnx", "--output", "out", "--custom-ops", given, cwd=tmp_path, code=2)
        assert message in done.err
        assert "xcframework" in done.err


def test_a_dylib_for_two_processors_is_one_library_for_each(tmp_path: Path) -> None:
    both = [
        image(machine, 1, kind=DYLIB).replace(b"_OrtGetApiBase", b"_RegisterCustomOps")
        for machine in ("arm64", "x86_64")
    ]
    (tmp_path / "both.dylib").write_bytes(fat(arm64=both[0], x86_64=both[1]))
    rows = read_libraries(str(tmp_path / "both.dylib"))
    assert [(row.system, row.abi) for row in rows] == [("macos", "arm64-v8a"), ("macos", "x86_64")]
