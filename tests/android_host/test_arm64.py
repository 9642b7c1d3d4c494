"""The arm64 library of an AAR in processes of this computer: models run, claims are made, failures are results."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_runner.android_host.device import AndroidHost, Driver, DriverProfile, DriverStage, Fault, FaultKind, Phone
from device_runner.android_host.inspection import HANG, Session, ask, read_calls
from device_runner.device import open_device
from device_runner.errors import UnavailableError
from device_runner.host_device import CPU_FILES, CPUS, common_cpus, cpu_files
from device_runner.library import LibraryFacts
from device_runner.providers import NNAPI
from device_runner.result import FailureKind, Mark
from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.check import reference
from pipeline.check.library_proof import FindingKind, LibraryProof
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Level
from pipeline.features.prove import ProofOrder, prove_bundle
from pipeline.library.kernels import read_arm_code
from pipeline.partition.answer import Settings
from pipeline.partition.reference import reference_aware
from pipeline.report.proofs import summary
from tests.android_host.bundles import bundle_of
from tests.android_host.conftest import fetch
from tests.android_host.runs import distance, failure, outputs, run
from tests.android_host.test_partition_reference import call
from tests.command import ort_mobile

pytestmark = pytest.mark.android_host

CORES = ("cortex-a53", "cortex-a76")

ARM64 = "arm64-v8a"


@pytest.fixture(scope="session")
def arm64(release: str) -> LibraryFacts:
    return fetch(release, ARM64)


@pytest.mark.parametrize("provider", [pytest.param("cpu", marks=pytest.mark.nightly), "nnapi", "xnnpack"])
def test_a_model_runs_in_the_library_of_phones(
    library: LibraryFacts, arm64: LibraryFacts, mnist: Path, tmp_path: Path, provider: str
) -> None:
    with AndroidHost("x86_64", library) as fast:
        wanted = outputs(run(fast, mnist, tmp_path / "x86_64", provider=provider))
    with AndroidHost("arm64", arm64) as device:
        result = run(device, mnist, tmp_path / "arm64", provider=provider)
    assert distance(outputs(result), wanted) < 1e-5
    assert {Mark.NOT_A_PHONE, Mark.EMULATED} <= set(result.marks)
    assert result.cpu == "cortex-a76"
    assert result.ort_version == arm64.release
    assert (result.load_ns, result.first_run_ns, result.latencies_ns, result.memory_peak_bytes) == (0, 0, (), 0)


ARM32 = "armeabi-v7a"


@pytest.fixture(scope="session")
def arm32(release: str) -> LibraryFacts:
    return fetch(release, ARM32)


@pytest.mark.parametrize(("provider", "threads"), [("cpu", 4), ("nnapi", 1)])
def test_a_model_runs_in_the_32_bit_library(
    library: LibraryFacts, arm32: LibraryFacts, mnist: Path, tmp_path: Path, provider: str, threads: int
) -> None:
    with AndroidHost("x86_64", library) as fast:
        wanted = outputs(run(fast, mnist, tmp_path / "x86_64", provider=provider))
    calls = tmp_path / "calls.jsonl"
    with AndroidHost("arm32", arm32, Phone(cpu="cortex-a7", calls=calls)) as device:
        result = run(device, mnist, tmp_path / "arm32", provider=provider, threads=threads)
    assert provider == "cpu" or [call["level"] for call in read_calls(calls) if "FeatureLevel" in call["call"]]
    assert distance(outputs(result), wanted) < 1e-5
    assert (result.cpu, result.latencies_ns, result.ort_version) == ("cortex-a7", (), arm32.release)


def test_the_32_bit_library_says_what_it_claims_and_refuses(arm32: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    """A file that is no model is its error: the library's exceptions find their way through frames of 32 bits."""
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"hello")
    questions = [("mnist", mnist, None), ("garbage", garbage, None)]
    good, bad = ask(arm32, questions, Session(phone=Phone(api_level=29)))
    assert good.subgraphs
    assert (bad.signal, "Protobuf" in bad.message or "protobuf" in bad.message) == ("", True)


def test_the_device_is_named_by_library_abi_and_cpu(arm64: LibraryFacts) -> None:
    with open_device(f"android-host:{arm64.path}?abi={ARM64}&cpu=cortex-a53&api_level=28") as device:
        facts = device.facts()
    assert (facts.abis, facts.soc, facts.api_level) == ((ARM64,), "cortex-a53 (emulated)", 28)
    with pytest.raises(UnavailableError, match="is for arm64-v8a, not for x86_64"):
        open_device(f"android-host:{arm64.path}")


def prove(bundle: Path, library: str, **order: object) -> LibraryProof:
    return prove_bundle(bundle, replace(ProofOrder(library=library, api_levels=(31,)), **order), NoProgress())  # type: ignore[arg-type]  # by name


def test_a_bundle_is_proven_in_the_abi_and_on_the_cpus_that_ship(
    release: str, arm64: LibraryFacts, mnist: Path, tmp_path: Path
) -> None:
    """This computer's own ABI first, then what ships."""
    proof = prove(bundle_of(tmp_path, mnist), f"android:{release}")
    places = [("x86_64", ""), *((ARM64, cpu) for cpu in CORES)]
    assert [(row.abi, row.cpu, row.failed) for row in proof.rows] == [(*place, False) for place in places]
    assert proof.library.sha256 == arm64.sha256
    assert "3 of 3 runs pass (API level 31; x86_64, arm64-v8a on cortex-a53 and cortex-a76)" in summary(proof)
    assert any("x86_64 was run as a first look" in note for note in proof.notes)
    assert not any("SME2" in note for note in proof.notes), "that is said where all processors are asked for"
    (with_sme,) = prove(tmp_path / "bundle", f"android:{release}", abis=(ARM64,), cpus=("sme",)).rows
    assert (with_sme.abi, with_sme.cpu, with_sme.failed) == (ARM64, "sme", False)


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_processors_that_no_emulator_plays_are_named_with_the_code_for_them(
    release: str, arm64: LibraryFacts, mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    """The library runs on all of them at night; in each run the emulator only lists its cores, and fails otherwise."""
    if not runs:
        emulator = tmp_path / "qemu-aarch64"
        lists = f'case "$*" in --version|"-cpu help") exec {shutil.which(emulator.name)} "$@";; esac'
        emulator.write_text(f"#!/bin/sh\n{lists}\nexit 1\n")
        emulator.chmod(0o755)
        monkeypatch.setenv("ORT_MOBILE_QEMU", str(emulator))
    proof = prove(bundle_of(tmp_path, mnist), f"android:{release}", abis=(ARM64,), cpus=("all",))
    assert {row.failed for row in proof.rows} == {not runs}
    assert [row.cpu for row in proof.rows] == list(common_cpus(ARM64))
    (sme2,) = (note for note in proof.notes if note.startswith("SME2 was not run"))
    code = next(row for row in read_arm_code(Path(arm64.path).read_bytes()).extensions if row.extension == "sme2")
    assert f"{code.functions} functions of this library" in sme2
    assert "asks AT_HWCAP " in sme2
    assert ("cortex-a710" in [row.cpu for row in proof.rows]) is not any("cortex-a710" in note for note in proof.notes)
    assert any("whose cores differ" in note for note in proof.notes)


def test_a_processor_that_announces_sme_and_traps_it_is_the_cause(
    release: str, arm64: LibraryFacts, mnist: Path, tmp_path: Path
) -> None:
    """Facts in docs/facts/arm64_host.md, 5.6."""
    (row,) = prove(bundle_of(tmp_path, mnist), f"android:{release}", abis=(ARM64,), cpus=("sme-traps",)).rows
    assert row.failed
    assert row.findings[0].what == "the library crashed (SIGILL)"
    assert "announces SME and its instructions trap" in row.findings[0].why
    assert "mlas.disable_kleidiai" in row.findings[0].remedy
    with AndroidHost("arm64", arm64, Phone(cpu="sme-traps")) as device:
        assert run(device, mnist, session_config={"mlas.disable_kleidiai": "1"}).failure is None


def test_int8_that_overflows_without_dot_product_is_found(
    release: str,
    arm64: LibraryFacts,
    real_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Facts in docs/facts/arm64_host.md, 5.1: -128 times -128 twice in a lane of 16 bits.

    Also where this computer's own processor saturates 8-bit sums, which is no excuse for an emulated one.
    """
    (tmp_path / "cpuinfo").write_text("flags : avx avx2\n")
    monkeypatch.setattr(reference, "PROCESSOR", tmp_path / "cpuinfo")
    model = real_model("mnist.qdq_s8s8")
    bundle = bundle_of(tmp_path, model, level=Level.EXTENDED)
    proof = prove(bundle, f"android:{release}")
    _, wrong, right = proof.rows
    assert (wrong.cpu, wrong.failed, [finding.code for finding in wrong.findings]) == (
        "cortex-a53",
        True,
        [FindingKind.OUTPUTS_DIFFER],
    )
    assert (right.cpu, right.failed) == ("cortex-a76", False)
    assert "int8 sums may overflow on ARM processors without dot product" in wrong.findings[0].why
    assert "within -127 to 127" in wrong.findings[0].remedy
    assert any("right on cortex-a76 and wrong on cortex-a53" in note for note in proof.notes)
    assert proof.objections[0].startswith("model extended-fixed (cpu, cortex-a53)")
    assert not prove(bundle, f"android:{release}", abis=("x86_64",)).failed


def test_a_group_that_arm_alone_makes_is_found(
    release: str, arm64: LibraryFacts, op_models: Path, tmp_path: Path
) -> None:
    """Facts in docs/facts/arm64_host.md, 5.3: NNAPI claims the Clip with the Concat, and cannot build that."""
    model = op_models / "qdq_concat" / "clip_0_none.onnx"
    bundle = bundle_of(tmp_path, model, [RunOptions(provider="nnapi")])
    (row,) = prove(bundle, f"android:{release}", abis=(ARM64,), cpus=("cortex-a76",)).rows
    (finding,) = row.findings
    assert finding.code is FindingKind.PROVIDER_REFUSED
    assert "part of the quantized group on ARM and not on x86" in finding.why
    assert "--safe --abi arm64-v8a" in finding.remedy
    assert not prove(bundle, f"android:{release}", abis=("x86_64",)).failed
    command = ["--ep", "nnapi", "--level", "all", "--no-config", "--output", str(tmp_path / "safe")]
    ort_mobile("convert", model, *command, "--safe", "--abi", ARM64)
    (file,) = (tmp_path / "safe").glob("*.ort")
    with AndroidHost("arm64", arm64) as device:
        assert run(device, file, provider="nnapi").failure is None


def test_half_precision_without_casts_is_found(
    release: str, arm64: LibraryFacts, real_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Facts in docs/facts/arm64_host.md, 5.2: a file that an ARM computer with half precision has optimized."""
    model = real_model("mnist.fp16")
    bundle = bundle_of(tmp_path, model)
    assert not prove(bundle, f"android:{release}", abis=(ARM64,), cpus=("cortex-a53",)).failed
    there = Settings(provider=NNAPI, api_level=26)
    bundle = bundle_of(
        tmp_path / "there",
        model,
        artifact=lambda target: reference_aware(model, target, arm64, there, OptimizationLevel.BASIC, cpu="cortex-a76"),
    )
    proof = prove(bundle, f"android:{release}", abis=(ARM64, "x86_64"))
    causes = {(row.abi, row.cpu): row.findings[0].why for row in proof.rows if row.failed}
    assert list(causes) == [(ARM64, "cortex-a53"), (ARM64, "cortex-a76"), ("x86_64", "")], "in the order asked for"
    for place, why in causes.items():
        told = "MaxPool in half precision before opset 12" if "cortex-a76" in place else "without Casts"
        assert told in why
    assert all("x86-64 computer" in row.findings[0].remedy for row in proof.rows)


def test_what_the_emulated_cpu_lacks_is_a_result(arm64: LibraryFacts, real_model: Callable[[str], Path]) -> None:
    """The files of an A76 on an A53: the library believes the part number, and takes the dot product for there."""
    model = real_model("mnist.qdq_s8s8")
    with AndroidHost("arm64", arm64, Phone(cpu="cortex-a53")) as device:
        info = Path(device._environment[CPU_FILES]) / "proc/cpuinfo"
        info.write_text(dict(cpu_files(CPUS["cortex-a76"], 1))["proc/cpuinfo"])
        ended = failure(run(device, model))
    assert (ended.code, ended.signal) == (FailureKind.CRASH, "SIGILL")
    assert "cortex-a53" in ended.why
    assert "QEMU" in ended.remedy


def hanging(stage: DriverStage) -> DriverProfile:
    fault = Fault(stage=stage, kind=FaultKind.HANG)
    return DriverProfile(devices=(Driver(name="npu", feature_level=30),), faults=(fault,))


def test_a_hang_ends_at_ten_times_the_limit(arm64: LibraryFacts, mnist: Path) -> None:
    with AndroidHost("arm64", arm64, Phone(driver=hanging(DriverStage.RUN))) as device:
        ended = failure(run(device, mnist, provider="nnapi", timeout_seconds=0.8))
    assert ended.code is FailureKind.TIMEOUT
    question = ("mnist", mnist, None)
    phone = Phone(driver=hanging(DriverStage.COMPILE))
    (answer,) = ask(arm64, [question], Session(phone=phone), limit_seconds=0.8)
    assert answer.signal == HANG


def test_claims_are_compared_with_the_library_of_the_abi(
    release: str, arm64: LibraryFacts, mnist: Path, op_models: Path, tmp_path: Path
) -> None:
    """A model that crashes the library among them, as our rules foresee: it costs its own answer."""
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(mnist, folder / "a.onnx")
    shutil.copy(op_models / "qlinearadd" / "no_y_zp.onnx", folder / "b.onnx")
    shutil.copy(mnist, folder / "c.onnx")
    result, document = call(tmp_path, str(folder), "--ep", "nnapi", "--reference", release, "--abi", ARM64)
    reference = document["reference"]
    assert (reference["abi"], reference["sha256"], reference["different"]) == (ARM64, arm64.sha256, 0)
    assert [one["same"] for one in reference["models"]] == [True, True, True]
    assert f"for {ARM64} (sha256 {arm64.sha256[:12]}): 0 different" in result.text
