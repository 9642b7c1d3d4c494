"""Swift packages of bundles: what is in them, that they never change, and what is refused first."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from device_runner.spec import ElementType, ExecutionMode, RunOptions
from pipeline.release.manifest import Shipped
from tests.command import Done, ort_mobile
from tests.features.android.samples import WEBGPU, bundle, shipped, signature, tensor
from tests.features.apple.samples import CPU, for_ios
from tests.values import files_of


def released(folder: Path, *more: str, package: str = "package", code: int | None = 0) -> Done:
    return ort_mobile("release", "apple", folder / "bundle", "--output", folder / package, *more, code=code)


def test_a_package_has_the_model_its_class_and_one_dependency(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(target="iphone"), shipped(runs=(WEBGPU,))))
    result = released(tmp_path)
    assert f'.package(path: "{tmp_path / "package"}")' in result.text
    files = files_of(tmp_path / "package")
    model = "Sources/DemoAppModels/Models/m.basic-fixed.ort"
    assert set(files) == {
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
    assert '.product(name: "DemoAppModels", package: "DemoAppModels")' in readme
    assert "warmUp" not in readme, "only the model for Android runs on a GPU"


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
    assert declared[0] & declared[1] == {"M", "Output", "run"}  # the model's own, which a module's name tells apart
    assert f'sha256: "{digest}"' in texts[0]
    assert "setenv" not in texts[0]


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
    assert 'appendExecutionProvider("CoreML", providerOptions: ["ModelFormat": "MLProgram"])' in first
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
