"""`ort-mobile release CONFIG`: every gate refuses alone with exit code 4 and its reason; else all is signed."""

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config import Gate, Platform, Target
from pipeline.core import errors
from pipeline.features import OFFERS
from pipeline.features.packages.release import early_findings, over_budget
from pipeline.release.manifest import ATTESTATION_FILE, SIGNATURE_FILE
from tests.command import Done, ort_mobile
from tests.features.android.samples import needs_java
from tests.library.library_files import official_aar
from tests.onnx_samples import conv_bn, quiet_map, save
from tests.release.test_signature import write_keys

CONFIG = """
name = "demo"
{top}
[[models]]
path = "m.onnx"
{model}
[[targets]]
name = "phone"
platform = "android"
abis = ["arm64-v8a"]
{target}
[variants]
levels = ["basic"]
styles = ["fixed"]
{variants}
[[runs]]
provider = "cpu"
[release]
gates = [{gates}]
{release}
"""
LICENSED = {"model": 'license = "Apache-2.0"'}
ALL = '"accuracy", "proof", "budget", "signature", "license"'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save(conv_bn(8), tmp_path / "m.onnx")
    write_keys(tmp_path)
    monkeypatch.delenv("ORT_MOBILE_KEY", raising=False)
    return tmp_path


def release(place: Path, *words: str, gates: str = "", code: int | None = 0, **parts: str) -> Done:
    """The command with a config of these parts; nothing is measured."""
    empty = dict.fromkeys(("top", "model", "target", "variants", "release"), "")
    (place / "demo.toml").write_text(CONFIG.format(gates=gates, **{**empty, **parts}))
    return ort_mobile("release", "demo.toml", "--convert-only", "--output", "out", *words, cwd=place, code=code)


def test_a_table_whose_feature_is_not_there_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OFFERS, "release.packages", ("apple.package:package",))
    refused = release(place, release='[release.android]\ngroup = "com.example"', code=2)
    assert "[release.android] cannot be released" in refused.err
    assert "remedy: take [release.android] out of the config" in refused.err


BUDGET = {"release": "[build]\nmax_library_bytes = { arm64-v8a = 100 }"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("gate", "parts", "reason"),
    [
        ("signature", {}, "there is no key to sign the bundle with"),
        ("license", {}, "the licence of m is not known"),
        ("license", {**LICENSED, "target": 'library = "app.aar"'}, "the licence of the library of phone is not known"),
        ("proof", {}, "the bundle cannot be shown to run in the library of phone"),
        ("accuracy", {"variants": 'precisions = ["fp16"]'}, "and no budget for its accuracy"),
        ("budget", BUDGET, "no library of target phone is known"),
        ("budget", {**BUDGET, "target": 'library = "app.aar"'}, "bytes over budget"),
    ],
)
def test_each_gate_refuses_alone_and_nothing_is_signed(
    place: Path, gate: str, parts: dict[str, str], reason: str
) -> None:
    if "app.aar" in parts.get("target", ""):
        official_aar(place / "app.aar", "1.28.0")
    done = release(place, *(() if gate == "signature" else ("--key", "key.pem")), gates=f'"{gate}"', **parts, code=4)
    assert reason in done.err
    assert "nothing was signed or packaged" in done.err
    assert not (place / "out/bundle" / SIGNATURE_FILE).exists()
    assert not (place / "out/maven").exists()


@pytest.mark.long
def test_outputs_that_nothing_could_judge_pass_no_gate(place: Path) -> None:
    save(quiet_map(60.0), place / "m.onnx")
    done = release(place, "--key", "key.pem", gates='"accuracy"', code=4)
    assert "m basic-fixed: its outputs could not be judged" in done.err
    assert "remedy: give test data" in done.err


@pytest.mark.long
def test_without_the_gate_it_passes(place: Path) -> None:
    done = release(place, model=LICENSED["model"])
    assert "signed   by nobody" in done.out


@pytest.mark.long
def test_reasons_that_need_no_measurement_come_first_and_together(place: Path) -> None:
    done = release(place, gates=ALL, code=4)
    assert "there is no key" in done.err
    assert "the licence of m is not known" in done.err
    assert not (place / "out").exists()


@pytest.mark.long
def test_a_release_is_signed_with_its_evidence(place: Path) -> None:
    done = release(
        place,
        "--key",
        "key.pem",
        "--json",
        "-",
        gates='"accuracy", "budget", "signature", "license"',
        model=LICENSED["model"],
    )
    document = done.document()
    checked = ort_mobile("bundle", "verify", "out/bundle", "--key", "key.pub", "--json", "-", cwd=place).document()
    assert document["signed_by"] == checked["signed_by"]
    assert checked["attested_tests"]["passedTests"] == ["outputs/m/basic-fixed"]
    assert (place / "out/bundle" / ATTESTATION_FILE).is_file()
    sbom = json.loads((place / "out/bundle/evidence/sbom.cdx.json").read_bytes())
    assert [part["licenses"] for part in sbom["components"]] == [
        [{"expression": "Apache-2.0"}],
        [{"expression": "MIT"}],
    ]


@pytest.mark.long
def test_the_key_of_the_environment_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_KEY", str(place / "key.pem"))
    release(place, gates='"signature"')
    assert (place / "out/bundle" / SIGNATURE_FILE).is_file()


@pytest.fixture
def java() -> None:
    needs_java()


IOS = '[[targets]]\nname = "ios"\nplatform = "ios"\nmin_os_version = "15.1"\n'
ANDROID = '[release.android]\ngroup = "com.example"'


@pytest.mark.usefixtures("java")
def test_packages_are_written_when_all_gates_pass(place: Path) -> None:
    done = release(place, "--version", "1.0", "--key", "key.pem", gates='"signature"', release=ANDROID)
    assert "android  com.example:demo-models:1.0 in out/maven" in done.out
    assert (place / "out/maven/com/example/demo-models/1.0/demo-models-1.0.aar").is_file()


@pytest.mark.long
def test_a_swift_package_is_written_too(place: Path) -> None:
    done = release(place, release=f'[release.apple]\n{IOS}ort_release = "1.24"')
    assert "apple    DemoModels in out/swift" in done.out
    assert (place / "out/swift/Package.swift").is_file()


@pytest.mark.long
def test_a_package_that_cannot_be_made_leaves_the_bundle_unsigned(place: Path) -> None:
    table = f'[release.apple]\nname = "Swift"\n{IOS}ort_release = "1.24"'
    done = release(place, "--key", "key.pem", gates='"signature"', release=table, code=2)
    assert "'Swift' cannot be the name of a Swift module" in done.err
    assert not (place / "out/bundle" / SIGNATURE_FILE).exists()


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_the_config_offers_what_the_command_for_android_does(place: Path) -> None:
    more = f'{ANDROID}\ntelemetry = "off"\nai_pack = "models_pack"'
    done = release(place, "--version", "1.0", release=more)
    assert "ai pack  models_pack" in done.out
    assert (place / "models_pack/build.gradle.kts").is_file()
    module = place / "out/maven/com/example/demo-models/1.0"
    assert "switch ONNX Runtime's telemetry off" in (module / "demo-models-1.0.pom").read_text()
    with zipfile.ZipFile(module / "demo-models-1.0.aar") as archive:
        assert not [name for name in archive.namelist() if name.endswith(".ort")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "table", "reason"),
    [
        (("--key", "m.onnx"), "", "the key cannot be used"),
        ((), ANDROID, "the packages have no version"),
        (("--version", "../1"), ANDROID, "cannot be a version in a Maven repository"),
        (("--version", "1"), '[release.android]\ngroup = "9 lives"', "cannot be a group in a Maven repository"),
        (("--version", "1"), f'{ANDROID}\nai_pack = "9 lives"', "is no name for an AI pack"),
        (("--version", "1"), f'{ANDROID}\nruntime = "m.onnx"', "m.onnx"),
        (("--version", "1"), f'{ANDROID}\ntarget = "tablet"', "this config has no target 'tablet' for Android"),
        ((), "[release.apple]", "nothing in this config is for iOS or macOS"),
        ((), f'[release.apple]\n{IOS}ort_release = "1.22"', "no Swift package of ONNX Runtime 1.22 is known"),
        ((), f'[release.apple]\nruntime_url = "https://a.b/c.zip"\n{IOS}', "--runtime-url is the address"),
    ],
)
def test_what_cannot_be_used_is_found_before_anything_is_made(
    place: Path, words: tuple[str, ...], table: str, reason: str
) -> None:
    done = release(place, *words, release=table, code=2)
    assert reason in done.err
    assert not (place / "out").exists()


@pytest.mark.long
def test_the_gates_that_there_are_are_listed_for_another_name(place: Path) -> None:
    done = release(place, gates='"speed"', code=2)
    assert "accuracy, proof, budget, signature, license" in done.err


@pytest.mark.parametrize(("rule", "refused"), [(errors.BUDGET, 1), ("", 0)])
def test_a_target_named_like_the_budget_is_none(rule: str, refused: int) -> None:
    finding = errors.Finding(severity=errors.Severity.WARNING, what="x", where="target max_library_bytes: m", code=rule)
    assert len(list(over_budget((finding,)))) == refused


@pytest.mark.parametrize(
    ("own", "given", "remedy"),
    [
        (None, None, 'name it, as in library = "android:1.29.0"'),
        ("android:1.29.0", None, "`ort-mobile library get android:1.29.0`"),
        (None, "android:1.29.0", "`ort-mobile library get android:1.29.0`"),
    ],
)
def test_a_library_that_is_not_here_is_known_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, given: str | None, remedy: str
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "ORT_MOBILE_CACHE", "GRADLE_USER_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    targets = (Target(name="a", platform=Platform.ANDROID, library=own), Target(name="i", platform=Platform.IOS))
    config = SimpleNamespace(targets=targets, release=SimpleNamespace(gates=(Gate.PROOF,)))
    (found,) = early_findings(cast("Any", config), given)
    assert found.what == "the bundle cannot be shown to run in the library of a"
    assert found.remedy.startswith(remedy)
