"""The genuine Android library on real adbd programs: NNAPI claims, compiles and gets its flags there as on a phone."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import TensorProto

from device_runner.android_host.device import (
    AndroidHost,
    Driver,
    DriverProfile,
    DriverStage,
    Fault,
    FaultKind,
    default_profile,
)
from device_runner.android_host.device import Phone as PlayedPhone
from device_runner.android_host.inspection import CallSummary, inspect_phone, read_calls, summarize
from device_runner.device import open_device
from device_runner.library import LibraryFacts
from device_runner.options import subsets
from device_runner.plugins import installed_plugin
from device_runner.result import Failure, FailureKind, RunResult, Status
from device_runner.spec import NnapiFlag, RunOptions, RunSpec
from tests.android_host.conftest import NEWEST, fetch
from tests.device.adb_farm import Farm, Open, Phone, farm_in
from tests.device.nnapi_phones import calls_of, phone_with, shims
from tests.device.npu import plugin_files
from tests.onnx_samples import parsed_nodes
from tests.probe_models import save_model

pytestmark = pytest.mark.android_host
ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"
LEVELS = (27, 28, 30, 31)
CAMPAIGN_LEVELS = (27, 31)
"""Flags differ below 29 and above: 28 has those of 27, 30 those of 31."""
FLAGS = ((), *((flag,) for flag in NnapiFlag), (NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY))


@pytest.fixture(scope="module")
def library() -> LibraryFacts:
    return fetch(NEWEST)


@pytest.fixture(scope="module")
def phones(farm: Farm, library: LibraryFacts, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Phone]:
    """By API level, each with an accelerator and the reference device."""
    libraries = shims()
    folder = tmp_path_factory.mktemp("drivers")
    return {level: phone_with(farm, libraries, default_profile(level), folder, level) for level in LEVELS}


def spec_of(library: LibraryFacts, flags: tuple[NnapiFlag, ...] = (), **values: Any) -> RunSpec:
    options = RunOptions(provider="nnapi", flags=flags, intra_op_threads=1)
    quick = {"warmup": 0, "min_runs": 1, "min_seconds": 0.0, **values}
    return RunSpec(id="mnist", model=str(MNIST), library=library.path, options=options, **quick)


def played(
    library: LibraryFacts, level: int, flags: tuple[NnapiFlag, ...], folder: Path
) -> tuple[RunResult, CallSummary]:
    """The same in a process of this computer, without any adb."""
    record = folder / f"{level}-{'-'.join(flags)}.jsonl"
    with AndroidHost("android-host", library, PlayedPhone(api_level=level, calls=record)) as device:
        return device.run(spec_of(library, flags)), summarize(read_calls(record))


@pytest.mark.parametrize("level", LEVELS)
def test_flags_lead_to_the_calls_that_they_lead_to_without_adb(
    opened: Open, phones: dict[int, Phone], library: LibraryFacts, tmp_path: Path, level: int
) -> None:
    phone = phones[level]
    device = opened(phone)
    assert [one.name for one in device.facts().nnapi_devices] == (
        ["android-host", "nnapi-reference"] if level >= 29 else []
    )
    ran = []
    for flags in FLAGS:
        calls_of(phone).unlink(missing_ok=True)
        result = device.run(spec_of(library, flags))
        if result.failure:
            ignored = newer_flags(level) & set(flags)
            assert result.failure.code is (FailureKind.WRONG_DEVICE if ignored else FailureKind.BAD_OPTIONS)
            assert not calls_of(phone).exists()
            continue
        ran.append(flags)
        here, summary = played(library, level, flags, tmp_path)
        assert summarize(read_calls(calls_of(phone), f"{library.sha256}.so")) == summary
        assert summary.runs == 2 * len(summary.partitions) > 0
        assert summary.relaxed == (level >= 28 and NnapiFlag.USE_FP16 in flags)
        assert (result.ort_version, result.log) == (NEWEST, here.log)
    assert len(ran) == {27: 1, 28: 2}.get(level, 5)


def test_drivers_that_fail_are_typed_results_over_adb(
    opened: Open, farm: Farm, library: LibraryFacts, tmp_path: Path
) -> None:
    kinds = {
        FaultKind.CRASH: (DriverStage.RUN, FailureKind.CRASH, "SIGSEGV"),
        FaultKind.HANG: (DriverStage.COMPILE, FailureKind.TIMEOUT, "SIGKILL"),
        FaultKind.FAIL: (DriverStage.COMPILE, FailureKind.PROVIDER_REFUSED, None),
    }
    for kind, (stage, wanted, signal) in kinds.items():
        profile = default_profile(30)
        broken = profile.__class__(devices=profile.devices, faults=(Fault(stage=stage, kind=kind),))
        phone = phone_with(farm, shims(), broken, tmp_path)
        device = opened(phone)
        seconds = 2.0 if wanted is FailureKind.TIMEOUT else 300.0
        failure = device.run(spec_of(library, timeout_seconds=seconds)).failure
        assert failure
        assert (failure.code, failure.signal) == (wanted, signal)
        assert device.run(RunSpec(id="cpu", model=str(MNIST), library=library.path, min_runs=1)).status is Status.OK


def test_a_profile_from_a_phone_replays_what_its_driver_refuses(
    opened: Open, farm: Farm, library: LibraryFacts, tmp_path: Path
) -> None:
    choosy = Driver(name="npu", feature_level=30, operations=("CONV_2D", "RELU", "TRANSPOSE"))
    device = opened(phone_with(farm, shims(), DriverProfile(devices=(choosy,)), tmp_path))
    profile = tmp_path / "npu.json"
    profile.write_bytes(msgspec.json.encode(inspect_phone(device)))
    there = device.run(spec_of(library)).failure
    with open_device(f"android-host:{library.path}?driver={profile}") as replaying:
        assert replaying.facts().api_level == 30
        here = replaying.run(spec_of(library)).failure
    assert there
    assert here
    assert there.code is FailureKind.PROVIDER_REFUSED
    assert "Name: [npu], Type [4]" in there.what
    assert here == there


def save_split(path: Path) -> Path:
    """Two convolutions with an operator between them that NNAPI does not take."""
    weights = np.random.default_rng(3).standard_normal((4, 4, 3, 3), dtype=np.float32)
    nodes = parsed_nodes("""
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Relu (a)  c = Selu (b)  d = Conv <pads = [1, 1, 1, 1]> (c, w)
        y = GlobalAveragePool (d)""")
    shapes = {"x": (TensorProto.FLOAT, [1, 4, 8, 8])}, {"y": (TensorProto.FLOAT, [1, 4, 1, 1])}
    return save_model(path, nodes, *shapes, {"w": weights})


CONFIG = """
name = "nnapi"
devices = ["adb:*"]
[[models]]
path = "{mnist}"
test_data = "{data}"
[[models]]
path = "{split}"
[[targets]]
name = "phone"
platform = "android"
abis = ["x86_64"]
min_api_level = 27
ort_release = "{release}"
[variants]
levels = ["basic"]
styles = ["fixed"]
[[runs]]
provider = "nnapi"
flags = "all"
threads = 1
[[runs]]
provider = "cpu"
threads = 1
[measure]
rounds = 1
min_runs = 2
min_seconds = 0.001
profile = true
"""


def campaign(folder: Path, farm_folder: Path, text: str, levels: Sequence[int], *, code: int = 0) -> dict[str, Any]:
    """The results of a campaign with a config on phones of some API levels, which ends with an exit code."""
    (folder / "nnapi.toml").write_text(text)
    with farm_in(farm_folder) as farm:
        for level in levels:
            phone_with(farm, shims(), default_profile(level), folder, level)
        roots = {phone.serial: phone.root for phone in farm.phones}
        done = subprocess.run(
            [
                sys.executable, str(Path(__file__).with_name("farm_cli.py")), json.dumps(roots), "run",
                str(folder / "nnapi.toml"), "--output", str(folder / "out"), "--library", f"android:{NEWEST}",
            ],
            capture_output=True, text=True, check=False, timeout=900,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "ANDROID_ADB_SERVER_PORT": str(farm.port), "COLUMNS": "160",
                "ORT_MOBILE_PIECES": "0",  # libraries go whole: they share nothing, and to find that takes seconds
            },
        )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    results: dict[str, Any] = json.loads((folder / "out/results.json").read_text())
    return results


@pytest.fixture(scope="module")
def results(library: LibraryFacts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a campaign with every set of flags on phones of two API levels."""
    folder = tmp_path_factory.mktemp("campaign")
    split = save_split(folder / "split.onnx")
    text = CONFIG.format(mnist=MNIST, data=MNIST.parent, split=split, release=NEWEST)
    return campaign(folder, tmp_path_factory.mktemp("farm"), text, CAMPAIGN_LEVELS)


BESIDE = """
name = "npu"
devices = ["adb:*"]
models = [{{ path = "{mnist}", test_data = "{data}" }}]
variants = {{ levels = ["basic"], styles = ["fixed"], contexts = ["SM8450", "SM8650"] }}
targets = [{{ name = "phone", platform = "android", abis = ["x86_64"], min_api_level = 27, ort_release = "{release}" }}]
[[runs]]
provider = "cpu"
[[runs]]
provider = "nnapi"
[[runs]]
provider = "webgpu"
[[runs]]
provider = "qnn"
variants = ["qnn-*"]
[measure]
rounds = 1
min_runs = 2
min_seconds = 0.001
plugins = {{ qnn = {plugin} }}
"""


@pytest.mark.npu
@pytest.mark.nightly
@pytest.mark.usefixtures("library")
def test_a_context_is_measured_beside_other_providers_and_compared_with_the_simulator(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plugin = installed_plugin("qnn")
    if isinstance(plugin, Failure):
        pytest.skip("the package onnxruntime-qnn is not installed")
    text = BESIDE.format(mnist=MNIST, data=MNIST.parent, release=NEWEST, plugin=json.dumps(plugin_files(plugin)))
    results = campaign(tmp_path, tmp_path_factory.mktemp("farm"), text, [31], code=1)  # there is no GPU
    rows = {(row["variant"], row["run"]): row for row in results["rows"] if not row["failed_rounds"]}
    assert set(rows) == {("basic-fixed", "cpu"), ("basic-fixed", "nnapi"), ("qnn-SM8450", "qnn")}
    (check,) = rows["qnn-SM8450", "qnn"]["checks"]
    assert check["passed"]
    assert check["max_rel_error"] > 0
    assert check["from_simulator"] == 0
    assert rows["basic-fixed", "cpu"]["checks"][0]["from_simulator"] is None
    assert [row["run"] for row in results["failures"]] == ["webgpu"]
    skipped = {row["variant"]: row["reason"] for row in results["skipped"]}
    assert skipped["qnn-SM8650"] == "it is for V75, and SM8450 has V69"
    assert "equal to simulated" in (tmp_path / "out/report.md").read_text("utf-8")


def newer_flags(level: int) -> set[NnapiFlag]:
    """What an API level ignores."""
    of_devices = {NnapiFlag.USE_NCHW, NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY} if level < 29 else set()
    return of_devices | ({NnapiFlag.USE_FP16} if level < 28 else set())


def legal(level: int) -> list[tuple[NnapiFlag, ...]]:
    both = {NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY}
    return [flags for flags in subsets() if not both <= set(flags) and not newer_flags(level) & set(flags)]


def test_all_legal_flags_run_and_the_others_are_told(results: dict[str, Any]) -> None:
    assert len(legal(27)) == 1
    assert len(legal(31)) == 12
    models = 2
    runs = sum(len(legal(level)) + 1 for level in CAMPAIGN_LEVELS) * models
    assert len(results["rows"]) == runs
    assert [row for row in results["rows"] if row["failed_rounds"]] == []
    devices = {device["api_level"]: len(device["nnapi_devices"]) for device in results["devices"]}
    assert devices == {27: 0, 31: 2}
    told = {one["reason"] for one in results["skipped"]}
    for reason in ("API 27: USE_NCHW needs 29", "API 27: CPU_DISABLED needs 29", "contradict each other"):
        assert any(reason in text for text in told), told


def test_measured_partitions_are_the_predicted_ones(results: dict[str, Any]) -> None:
    nnapi = [one for one in results["profiles"] if one["run"].startswith("nnapi")]
    assert len(nnapi) == sum(len(legal(level)) for level in CAMPAIGN_LEVELS) * 2
    for one in nnapi:
        assert (one["failure"], one["finding"]) == ("", ""), one
        measured, predicted = one["coverage"], one["prediction"]
        assert measured["partitions"] == predicted["partitions"]
        assert (measured["nodes"], measured["claimed_nodes"]) == (predicted["nodes"], predicted["claimed"])
        assert one["profile"]["partitions"] == {"NnapiExecutionProvider": measured["partitions"]}
    found = {(one["name"].split(" ")[0], one["coverage"]["partitions"]) for one in nnapi}
    assert found == {("mnist", 1), ("mnist", 2), ("split", 1), ("split", 2)}  # at 27 only the activations
