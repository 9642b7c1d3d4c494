"""Swift packages of bundles, also with a build of ONNX Runtime of one's own: what is in them, and what is refused."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runner.spec import ElementType, ExecutionMode, RunOptions
from pipeline.features.apple.package import held_twice
from pipeline.release.kept import BundledFile
from pipeline.release.manifest import Shipped
from tests.command import Done, ort_mobile
from tests.features.android.samples import WEBGPU, bundle, manifest, shipped, signature, tensor
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
from tests.features.apple.samples import CPU, for_ios
from tests.stops import STOPPED, stops
from tests.values import files_of


def released(folder: Path, *more: str, package: str = "package", code: int | None = 0) -> Done:
    return ort_mobile("release", "apple", folder / "bundle", "--output", folder / package, *more, code=code)


def test_a_package_has_the_model_its_class_and_one_dependency(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(target="iphone"), shipped(runs=(WEBGPU,))))
    result = released(tmp_path)
    assert f'.package(path: "{tmp_path / "package"}")' in result.text
    files = files_of(tmp_path / "package")
    model = "Sources/DemoAppModels/Models/m.basic-fixed.ort"
    assert {name for name in files if "/Guard" not in name} == {
        "Package.swift", "README.md", "DemoAppModels.podspec", "Sources/DemoAppModels/M.swift",
        "Sources/DemoAppModels/ModelFile.swift", model,
    }  # fmt: skip
    assert files[model] == (tmp_path / "bundle/models/m.basic-fixed.ort").read_bytes()
    manifest = files["Package.swift"].decode()
    assert manifest.startswith("// swift-tools-version: 5.9\n")
    assert 'platforms: [.iOS("15.1"), .macOS("14")]' in manifest
    assert 'onnxruntime-swift-package-manager", .upToNextMinor(from: "1.24.2")' in manifest
    assert 'resources: [.copy("Models")]' in manifest
    readme = files["README.md"].decode()
    assert "import DemoAppModels\n\nlet model = try M()\n" in readme
    assert '.package(path: "../package")\n.product(name: "DemoAppModels", package: "package")' in readme
    assert "warmUp" not in readme, "only the model for Android runs on a GPU"


@pytest.mark.parametrize(("release", "size", "is_told"), [("1.24", 16, True), ("1.24", 15, False), ("1.29", 16, False)])
def test_weights_that_iphones_hold_twice_are_told(release: str, size: int, is_told: bool) -> None:
    held = shipped("m", platform="ios", ort_release=release)
    file = BundledFile(path=held.file, size_bytes=size * 10**6, sha256="2" * 64)
    table = manifest([held], [signature()], files=(file,))
    assert [text.startswith("m: ONNX Runtime 1.24 reads") for text in held_twice(table, [held])] == [True] * is_told


def test_the_class_that_picks_a_size_is_listed(tmp_path: Path) -> None:
    models = (signature("m", inputs=(tensor("x", 1, "n"),)), signature("m-8", inputs=(tensor("x", 1, 8),), size_of="m"))
    bundle(tmp_path, (for_ios(), for_ios("m-8")), models)
    assert "classes  M, M8, MSizes\n" in released(tmp_path).text
    assert "`MSizes`" in files_of(tmp_path / "package")["README.md"].decode()


def test_the_classes_compare_digests_and_two_packages_have_no_name_in_common(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    released(tmp_path)
    released(tmp_path, "--name", "Others", package="others")
    digest = hashlib.sha256((tmp_path / "bundle/models/m.basic-fixed.ort").read_bytes()).hexdigest()
    texts = [
        "".join(text.decode() for name, text in files_of(tmp_path / folder).items() if name.endswith(".swift"))
        for folder in ("package", "others")
    ]
    declared = [set(re.findall(r"public (?:enum|struct|func|final class) (\w+)", text)) for text in texts]
    # The model's own and the guard's, which a module's name tells apart
    own = {name for name in declared[0] & declared[1] if not name.startswith("Guard")}
    assert own == {"M", "Output", "run"}
    assert f'sha256: "{digest}"' in texts[0]
    assert "setenv" not in texts[0]


NAMES = (
    r'Package\(\s*name: "(\w+)"', r'\.(?:target|binaryTarget|library)\(\s*name: "(\w+)"', r"s\.name = '(\w+)'",
    r"s\.resource_bundles = \{ '(\w+)'",
)  # fmt: skip
"""Of packages, targets and products in Package.swift, of a pod and its bundle of resources."""


def test_two_versions_of_one_model_fit_into_one_app_by_two_names(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    declared, places = [], []
    for folder, words in (("package", ()), ("v2", ("--name", "DemoAppV2Models"))):
        released(tmp_path, *words, package=folder)
        files = files_of(tmp_path / folder)
        text = "\n".join(files[name].decode() for name in files if name.endswith((".podspec", "Package.swift")))
        found = [re.findall(pattern, text) for pattern in NAMES]
        assert all(found)
        declared.append({name for names in found for name in names})
        places.append({name.split("/")[1] for name in files if name.startswith("Sources/")})
        (own,) = declared[-1]
        assert f'forResource: "{own}", ofType: "bundle"' in files[f"Sources/{own}/ModelFile.swift"].decode()
    assert declared == places == [{"DemoAppModels"}, {"DemoAppV2Models"}]


def test_without_the_guard_nothing_of_it_is_there(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    released(tmp_path)
    guarded = files_of(tmp_path / "package")
    released(tmp_path, "--no-guard", package="plain")
    plain = files_of(tmp_path / "plain")
    assert "Sources/DemoAppModels/Guard.swift" in guarded
    assert b'"ModelCacheDirectory": cache' in guarded["Sources/DemoAppModels/M.swift"]
    assert b"Guard" not in b"".join(plain.values())
    assert b"ModelCacheDirectory" not in plain["Sources/DemoAppModels/M.swift"]


def test_telemetry_is_switched_off_before_the_environment_is_made(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    released(tmp_path, "--telemetry", "off")
    source = files_of(tmp_path / "package")["Sources/DemoAppModels/ModelFile.swift"].decode()
    assert 0 < source.index('setenv("ORT_DISABLE_TELEMETRY", "1", 1)') < source.index("return try ORTEnv(")


def test_the_podspec_finds_sources_and_models(tmp_path: Path) -> None:
    """CocoaPods reads it as Ruby: what it sets is recorded by a stand-in of its class."""
    bundle(tmp_path, (for_ios(),))
    released(tmp_path)
    package = tmp_path / "package"
    text = (package / "DemoAppModels.podspec").read_text()
    assert "s.dependency 'onnxruntime-objc', '~> 1.24.2'\n" in text
    patterns = [pattern for line in text.splitlines() for pattern in re.findall(r"'(Sources/[^']*)'", line)]
    assert [bool(list(package.glob(pattern))) for pattern in patterns] == [True, True]
    if not shutil.which("ruby"):
        pytest.skip("ruby is not installed")
    program = """
        module Pod; class Spec
          def initialize; yield self; end
          def method_missing(name, *values); puts([name, *values].inspect); self; end
        end; end
        load ARGV[0]
    """
    done = subprocess.run(
        ["ruby", "-W0", "-e", program, str(package / "DemoAppModels.podspec")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '[:deployment_target=, "15.1"]' in done.stdout
    assert '[:resource_bundles=, {"DemoAppModels"=>["Sources/DemoAppModels/Models/*"]}]' in done.stdout.replace(
        " => ", "=>"
    )


def test_recorded_options_are_tried_in_their_order(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    released(tmp_path)
    source = (tmp_path / "package/Sources/DemoAppModels/M.swift").read_text()
    first, second = source.split("Way(name: ")[1:]
    assert 'appendExecutionProvider("CoreML", providerOptions: ["ModelFormat": "MLProgram", ' in first
    assert second.startswith('"cpu+threads=2"')
    assert "public func run(x: [Float]) throws -> Output" in source
    assert "use_memory_mapped_ort_model" not in source  # 1.24 ignores it


def test_a_release_that_maps_files_is_told_to(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(ort_release="1.30.0"),))
    released(tmp_path, "--onnxruntime", "1.30.0")
    assert 'exact: "1.30.0"' in (tmp_path / "package/Package.swift").read_text()
    source = (tmp_path / "package/Sources/DemoAppModels/M.swift").read_text()
    assert source.count("session.use_memory_mapped_ort_model") == 2


def test_the_same_bundle_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    released(tmp_path)
    other = tmp_path / "another place ü"
    other.mkdir()
    (tmp_path / "bundle").rename(other / "bundle")
    arguments = ["release", "apple", str(other / "bundle"), "--output", str(other / "package")]
    environment = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "HOME": str(other)}
    command = [sys.executable, "-m", "pipeline", *arguments]
    subprocess.run(command, check=True, umask=0o077, env=environment, capture_output=True)
    assert files_of(other / "package") == files_of(tmp_path / "package")


def test_a_package_of_ours_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    released(tmp_path, "--name", "Old")
    assert released(tmp_path).out.startswith("wrote")
    assert not (tmp_path / "package/Sources/Old").exists()
    assert released(tmp_path).out.startswith("unchanged")
    (tmp_path / "package/.git").mkdir()
    result = released(tmp_path, code=2)
    assert "no Swift package of ours" in result.err
    assert (tmp_path / "package/.git").is_dir()


@pytest.mark.parametrize("actions", STOPPED)
@pytest.mark.parametrize("there", ["nothing", "an older package"])
def test_a_package_that_is_stopped_is_written_by_the_next(tmp_path: Path, there: str, actions: tuple[str, ...]) -> None:
    start = tmp_path / "start"
    start.mkdir()
    bundle(start, (for_ios(),))
    if there != "nothing":
        released(start, "--name", "Older")
    left = stops(tmp_path, ("release", "apple", "bundle", "--output", "package"), actions)
    old, new = files_of(start / "package"), files_of(left[-1].again / "package")
    assert len(left) > 20
    for stop in left:
        assert not stop.traced, stop.name
        assert files_of(stop.after / "package") in (old, new), stop.name
        assert (files_of(stop.again / "package"), stop.again_code) == (new, 0), stop.name
        assert not list(stop.again.glob(".*")), stop.name


def test_what_the_api_cannot_set_is_reported(tmp_path: Path) -> None:
    lost = RunOptions(inter_op_threads=2, execution_mode=ExecutionMode.PARALLEL, cpu_arena=False, memory_pattern=False)
    outputs = (tensor("y", 1, 2, 8, 8), tensor("z", 1, dtype=ElementType.FLOAT16))
    bundle(tmp_path, (for_ios(runs=(lost, CPU)),), (signature(outputs=outputs),))
    result = released(tmp_path, "--json", "-")
    options, output = json.loads(result.out)["warnings"]
    assert "runs without inter-op threads, parallel execution, memory pattern, memory arena" in options
    assert "the output z is left out" in output
    assert "warning: m: the output z" in result.err
    assert "zShape" not in (tmp_path / "package/Sources/DemoAppModels/M.swift").read_text()


@pytest.mark.parametrize("kind", [ElementType.FLOAT16, ElementType.BOOL, ElementType.FLOAT64, None])
def test_a_model_that_swift_cannot_run_is_refused(tmp_path: Path, kind: ElementType | None) -> None:
    bundle(tmp_path, (for_ios(),), (signature(inputs=(tensor("x", 1, dtype=kind),)),))
    result = released(tmp_path, code=2)
    assert "Swift cannot run the model m: x is" in result.err
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(
    ("ships", "more", "message"),
    [
        (for_ios(), ("--name", "my models"), "'my models' cannot be the name of a Swift module"),
        (for_ios(), ("--name", "../up"), "cannot be the name"),
        (for_ios(), ("--name", "class"), "cannot be the name"),
        (for_ios(), ("--name", "Foundation"), "cannot be the name"),
        (for_ios(), ("--name", "OnnxRuntimeBindings"), "cannot be the name"),
        (for_ios(), ("--name", "UIKit"), "'UIKit' cannot be the name"),
        (for_ios(), ("--target", "tv"), "no target 'tv' for iOS or macOS"),
        (for_ios(), ("--onnxruntime", "1.20.0"), "'1.20.0' is no version of ONNX Runtime 1.24"),
        (for_ios(), ("--onnxruntime", "1.24"), "'1.24' is no version of ONNX Runtime 1.24 in three parts"),
        (for_ios(), ("--onnxruntime", '1.24.2")'), "is no version of ONNX Runtime 1.24"),
        (for_ios(ort_release="1.22"), (), "no Swift package of ONNX Runtime 1.22 is known"),
        (for_ios(min_os_version="13.0"), (), "ONNX Runtime 1.24 needs iOS 15 or higher"),
        (for_ios(ort_release="1.20", min_os_version="13"), (), "generic append call of release 1.20"),
        (for_ios(runs=(RunOptions(provider="nnapi"),)), (), "belongs to Android"),
        (for_ios(platform="android"), (), "nothing in this bundle is for iOS or macOS"),
    ],
)
def test_what_swift_refuses_is_refused_first(
    tmp_path: Path, ships: Shipped, more: tuple[str, ...], message: str
) -> None:
    bundle(tmp_path, (ships,))
    result = released(tmp_path, *more, code=2)
    assert message in result.err, result.text
    assert not (tmp_path / "package").exists()


def test_two_models_of_one_class_or_one_file_are_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios("a.b"), for_ios("a-b")), (signature("a.b"), signature("a-b")))
    assert "would both have the class AB" in released(tmp_path, code=2).err
    shutil.rmtree(tmp_path / "bundle")
    bundle(tmp_path, (for_ios("a", file="models/x/m.ort"), for_ios("b", file="models/y/M.ort")),
           (signature("a"), signature("b")))  # fmt: skip
    assert "models/x/m.ort and models/y/M.ort would be one resource" in released(tmp_path, code=2).err
    assert not (tmp_path / "package").exists()


def test_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(),))
    (tmp_path / "bundle/models/m.basic-fixed.ort").write_bytes(b"x")
    released(tmp_path, code=4)
    assert not (tmp_path / "package").exists()


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
        released(tmp_path, "--runtime", str(given), "--runtime-url", url, package=f"{name}/p")
    assert files_of(tmp_path / "one/p") == files_of(tmp_path / "two/p")
    digest = hashlib.sha256((tmp_path / "one/p/onnxruntime.xcframework.zip").read_bytes()).hexdigest()
    assert f'url: "{url}", checksum: "{digest}"' in (tmp_path / "one/p/Package.swift").read_text()


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
