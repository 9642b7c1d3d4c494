"""Packages with a build of ONNX Runtime of one's own, and xcframeworks that may come from anywhere."""

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.features.android.samples import bundle
from tests.features.apple.frameworks import (
    DYLIB,
    SIMULATOR,
    archive,
    fat,
    image,
    listed,
    write_info,
    xcframework,
)
from tests.features.apple.samples import for_ios
from tests.features.apple.test_package import released
from tests.values import files_of


def test_a_build_of_ones_own_is_a_binary_target_with_its_module(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    framework = xcframework(tmp_path)
    (framework / "macos-arm64").mkdir()
    released(tmp_path, "--runtime", str(framework))
    files = files_of(tmp_path / "package")
    manifest = files["Package.swift"].decode()
    assert '.binaryTarget(name: "onnxruntime", path: "onnxruntime.xcframework.zip")' in manifest
    assert "onnxruntime-swift-package-manager" not in manifest
    assert 'platforms: [.iOS("15.1")]' in manifest
    assert files["Sources/COnnxRuntime/include/onnxruntime_c_api.h"] == b"#define ORT_API_VERSION 24\n"
    assert "Sources/COnnxRuntime/include/onnxruntime_cxx_api.h" not in files
    assert "Sources/OnnxRuntimeBindings/OnnxRuntimeBindings.swift" in files
    with zipfile.ZipFile(tmp_path / "package/onnxruntime.xcframework.zip") as packed:
        names = set(packed.namelist())
        device = packed.read("onnxruntime.xcframework/ios-arm64/onnxruntime.framework/onnxruntime")
    assert device == archive(image(), image(lowest="15.0"))
    assert "onnxruntime.xcframework/Info.plist" in names
    assert not any("macos" in name for name in names)


def test_a_zip_of_it_gives_the_same_package_and_an_address_its_checksum(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    framework = xcframework(tmp_path)
    shutil.make_archive(str(tmp_path / "own"), "zip", tmp_path, "own.xcframework")
    url = "https://example.com/a/onnxruntime.zip"
    for name, given in (("one", framework), ("two", tmp_path / "own.zip")):
        released(tmp_path, "--runtime", str(given), "--runtime-url", url, package=name)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    digest = hashlib.sha256((tmp_path / "one/onnxruntime.xcframework.zip").read_bytes()).hexdigest()
    assert f'url: "{url}", checksum: "{digest}"' in (tmp_path / "one/Package.swift").read_text()


def _link(place: Path) -> None:
    (place / "ios-arm64/onnxruntime.framework/Headers/x.h").symlink_to("/etc/passwd")


def _bomb(place: Path) -> None:
    text = (
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><plist><string>&c;</string></plist>'
    )
    (place / "Info.plist").write_text(text)


HOSTILE: list[tuple[Callable[[Path], object], str]] = [
    (lambda place: (place / "Info.plist").unlink(), "Info.plist cannot be read"),
    (lambda place: (place / "Info.plist").write_bytes(b"bplist00\xff\xff"), "its Info.plist is damaged"),
    (lambda place: (place / "Info.plist").write_bytes(b" " * (2 << 20)), "Info.plist cannot be read"),
    (_bomb, "its Info.plist is damaged"),
    (lambda place: write_info(place, [], kind="APPL"), "no CFBundlePackageType XFWK"),
    (lambda place: write_info(place, {"a": 1}), "its Info.plist is damaged"),
    (lambda place: write_info(place, [{**listed("ios-arm64", ["arm64"]), "LibraryPath": 7}]), "is damaged"),
    (lambda place: write_info(place, [listed("../../etc", ["arm64"])]), "it has the path '../../etc'"),
    (lambda place: write_info(place, [listed("/etc", ["arm64"])]), "it has the path '/etc'"),
    (lambda place: write_info(place, [listed("ios-x86_64", ["x86_64"])]), "0 slices for iOS devices of arm64"),
    (lambda place: write_info(place, [listed("ios-armv7", ["arm64"])]), "ios-armv7 is missing"),
    (lambda place: write_info(place, [listed("ios-arm64", ["arm64", "arm64e"])]), "has code for arm64, and its Info"),
    (_link, "is missing, a link or no regular file"),
    (lambda place: shutil.rmtree(place / "ios-arm64/onnxruntime.framework/Headers"), "no header onnxruntime_c_api.h"),
]


@pytest.mark.parametrize(("harm", "message"), HOSTILE)
def test_what_is_no_framework_for_iphones_is_refused(
    tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    bundle(tmp_path, (for_ios(),))
    framework = xcframework(tmp_path)
    harm(framework)
    result = released(tmp_path, "--runtime", str(framework), code=None)
    assert message in result.err, result.err
    assert result.code in (2, 4)
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "cannot be read"),
        (b"\x7fELF" + bytes(60), "it is no Mach-O file"),
        (image().replace(b"_OrtGetApiBase", b"_SomethingElse"), "it has no OrtGetApiBase"),
        (archive(image(system=SIMULATOR)), "ios-arm64 has code for ios simulator"),
        (archive(image(), image(system=1)), "its objects are for 2 systems"),
        (archive() + b"#1/99999", "its objects are for 0 systems"),
        (archive(image())[:-40], "a member of the archive is damaged"),
        (fat(arm64=image())[:30], "lies outside the file"),
        (b"\xca\xfe\xba\xbe\xff\xff\xff\xff", "its list of architectures is damaged"),
        (image(kind=DYLIB), "some of its slices are static and some dynamic"),
        (archive(image(lowest="17.0")), "needs iOS 17.0 or higher"),
    ],
)
def test_code_that_phones_cannot_run_is_refused(tmp_path: Path, code: bytes, message: str) -> None:
    bundle(tmp_path, (for_ios(),))
    result = released(tmp_path, "--runtime", str(xcframework(tmp_path, device=code)), code=None)
    assert message in result.err, result.err
    assert not (tmp_path / "package").exists()


def test_a_dynamic_framework_needs_what_stores_ask_for(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    both = fat(arm64=image(system=SIMULATOR, kind=DYLIB), x86_64=image("x86_64", SIMULATOR, kind=DYLIB))
    framework = xcframework(tmp_path, device=image(kind=DYLIB), simulator=both)
    released(tmp_path, "--runtime", str(framework))
    shutil.rmtree(tmp_path / "package")
    (framework / "ios-arm64/onnxruntime.framework/Info.plist").write_bytes(b"x")
    assert (
        "has no MinimumOSVersion, and app stores refuse that"
        in released(tmp_path, "--runtime", str(framework), code=4).err
    )


def test_a_build_of_another_release_or_for_another_target_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(), for_ios(target="mac", platform="macos")))
    framework = str(xcframework(tmp_path, api=29))
    other = released(tmp_path, "--runtime", framework, "--target", "phone", code=4)
    assert "the build is of ONNX Runtime 1.29, and the bundle was made for 1.24" in other.err
    assert (
        "is for iOS, and this target is for macos"
        in released(tmp_path, "--runtime", framework, "--target", "mac", code=2).err
    )


def test_a_zip_that_leads_elsewhere_or_is_none_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as packed:
        packed.writestr("own.xcframework/../../evil", b"x")
    (tmp_path / "text.zip").write_text("no ZIP")
    with zipfile.ZipFile(tmp_path / "damaged.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("own.xcframework/Info.plist", b"a" * 999)
    content = (tmp_path / "damaged.zip").read_bytes()
    start = content.index(b"Info.plist") + len("Info.plist")
    (tmp_path / "damaged.zip").write_bytes(content[:start] + b"\xff" * 4 + content[start + 4 :])
    for name, message in (
        ("evil.zip", "it has the path"),
        ("text.zip", "not a zip file"),
        ("damaged.zip", "while decompressing"),
        ("none.zip", "cannot be"),
    ):
        assert message in released(tmp_path, "--runtime", str(tmp_path / name), code=2).err
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("url", ["http://example.com/a.zip", 'https://example.com/a".zip', "https://example.com/a"])
def test_addresses_that_swift_refuses_are_refused(tmp_path: Path, url: str) -> None:
    bundle(tmp_path, (for_ios(),))
    result = released(tmp_path, "--runtime", str(xcframework(tmp_path)), "--runtime-url", url, code=2)
    assert "cannot be the address of a binary target" in result.err
