"""Megabytes on the way to a device and back, with faults between adb server and adbd; and what is not what it says."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from device_runner.build import build_probe
from device_runner.result import FailureKind, RunResult, Status
from device_runner.spec import ElementType, RunOptions, RunSpec, TensorFile
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Phone
from tests.device.fault_proxy import FaultProxy, Hit
from tests.probe_models import save_model

COUNT = 900_000
"""Numbers in a model and in its output: 3.6 MB, more than there is before the latest fault."""


def numbers(seed: int, count: int = COUNT) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def save_giver(path: Path, seed: int, count: int = COUNT, name: str = "x") -> Path:
    """A model that gives these numbers, and is as large."""
    nodes = [helper.make_node("Mul", [name, "zero"], ["n"]), helper.make_node("Add", ["n", "w"], ["y"])]
    weights = {"w": numbers(seed, count), "zero": np.zeros(1, np.float32)}
    return save_model(path, nodes, {name: (TensorProto.FLOAT, [1])}, {"y": (TensorProto.FLOAT, [count])}, weights)


def spec_for(model: Path, outputs: Path, **more: object) -> RunSpec:
    usual = {"outputs_folder": str(outputs), "min_runs": 1, "warmup": 0, "min_seconds": 1e-9, "timeout_seconds": 20.0}
    return RunSpec(id=model.name, model=str(model), **{**usual, **more})  # type: ignore[arg-type]  # by name


def check_numbers(result: RunResult, seed: int) -> None:
    assert result.status is Status.OK, result.failure
    np.testing.assert_array_equal(np.fromfile(result.outputs[0].file, np.float32), numbers(seed))


@pytest.fixture(scope="module")
def proxies() -> Iterator[list[FaultProxy]]:
    made: list[FaultProxy] = []
    yield made
    for proxy in made:
        proxy.close()


@pytest.fixture(scope="module")
def behind(farm: Farm, proxies: list[FaultProxy]) -> Phone:
    """A phone with a proxy before its adbd."""

    def before(phone: Phone) -> str:
        proxies.append(FaultProxy(phone.port))
        return f"127.0.0.1:{proxies[-1].port}"

    return farm.phone(before=before)


@pytest.fixture
def device(farm: Farm, behind: Phone, tools: Tools) -> Iterator[AdbDevice]:
    farm.join(behind)
    with AdbDevice(Link(server_at(f"127.0.0.1:{farm.port}"), behind.serial), root=behind.root, tools=tools) as opened:
        yield opened


@pytest.mark.parametrize(
    ("way", "fault", "place"),
    [
        ("up", "cut", 5_001),
        pytest.param("up", "cut", 3_000_006, marks=pytest.mark.nightly),
        pytest.param("up", "stall", 5_001, marks=pytest.mark.nightly),
        ("up", "stall", 3_000_006),
        pytest.param("up", "garble", 5_001, marks=pytest.mark.nightly),
        ("up", "garble", 3_000_006),
        pytest.param("down", "cut", 5_001, marks=pytest.mark.nightly),
        ("down", "cut", 3_000_006),
        ("down", "stall", 5_001),
        pytest.param("down", "stall", 3_000_006, marks=pytest.mark.nightly),
        ("down", "garble", 5_001),
        pytest.param("down", "garble", 3_000_006, marks=pytest.mark.nightly),
    ],
)
def test_a_fault_amid_megabytes_gives_the_right_numbers_or_a_typed_failure(
    device: AdbDevice, proxies: list[FaultProxy], tmp_path: Path, way: str, fault: str, place: int
) -> None:
    """Fault and place are counted from the push (up), or from the pull of the output (down)."""
    device.run(spec_for(save_giver(tmp_path / "small.onnx", 1, 10), tmp_path / "out"))
    seed = zlib.crc32(f"{way} {fault} {place}".encode())  # no file is another test's, whose pieces the phone would have
    model = save_giver(tmp_path / "large.onnx", seed)
    before = proxies[0].hits[fault]
    proxies[0].once(way, Hit(fault, place, bit=place % 8, seconds=0.7))
    first = device.run(spec_for(model, tmp_path / "out"))
    assert proxies[0].hits[fault] == before + 1, "the fault was never reached"
    if first.status is Status.OK:
        check_numbers(first, seed)
    else:
        assert first.failure
        assert first.failure.code in (
            FailureKind.LOST_DEVICE, FailureKind.GARBAGE, FailureKind.DEVICE_ERROR, FailureKind.TIMEOUT,
        )  # fmt: skip
        assert first.failure.remedy
        assert not first.outputs
    proxies[0].heal()
    check_numbers(device.run(spec_for(model, tmp_path / "out")), seed)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["output_0.raw"]


PULLS = {
    "removed": ("rm -f output_*", FailureKind.DEVICE_ERROR),
    "shortened": ("head -c 100 output_0.raw > o && mv o output_0.raw", FailureKind.GARBAGE),
    "longer": ("echo more >> output_0.raw", FailureKind.DEVICE_ERROR),
    "changed": ("printf x | dd of=output_0.raw conv=notrunc bs=1 seek=3000000 2>/dev/null", FailureKind.GARBAGE),
    "a folder": ("rm output_0.raw; mkdir output_0.raw", FailureKind.DEVICE_ERROR),
    "a link": ("ln -sf /etc/passwd output_0.raw", FailureKind.GARBAGE),
}


@pytest.mark.parametrize("name", PULLS)
def test_outputs_that_are_not_what_the_run_wrote(
    farm: Farm, phone: Phone, tools: Tools, tmp_path: Path, name: str
) -> None:
    act, kind = PULLS[name]
    (tmp_path / "probe").write_text(f'#!/bin/sh\n"{tools[0]}" "$@"\ncode=$?\n{act}\nexit $code\n')
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    with AdbDevice(link, root=phone.root, tools=(tmp_path / "probe", tools[1])) as device:
        result = device.run(spec_for(save_giver(tmp_path / "m.onnx", 1), tmp_path / "out"))
        assert result.failure
        assert result.failure.code is kind, result.failure
        assert result.failure.remedy
        assert result.outputs == ()
        assert list((tmp_path / "out").iterdir()) == []
        assert device.run(spec_for(tmp_path / "m.onnx", tmp_path / "out", outputs_folder=None)).status is Status.OK


def test_a_probe_for_another_processor_is_a_typed_failure(
    farm: Farm, phone: Phone, tools: Tools, tmp_path: Path
) -> None:
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    with AdbDevice(link, root=phone.root, tools=(build_probe("arm64-v8a"), tools[1])) as device:
        failure = device.run(spec_for(save_giver(tmp_path / "m.onnx", 1, 10), tmp_path / "out")).failure
    assert failure
    assert failure.code is FailureKind.SET_UP
    assert "does not execute the probe" in failure.what
    assert "another processor" in failure.why


@pytest.mark.parametrize(("provider", "level", "kind"), [("nnapi", "26", FailureKind.WRONG_DEVICE)])
def test_a_device_of_another_api_level_is_skipped_with_the_reason(
    farm: Farm, tools: Tools, tmp_path: Path, provider: str, level: str, kind: FailureKind
) -> None:
    old = farm.phone({**PHONE_PROPERTIES, "ro.build.version.sdk": level})
    with AdbDevice(Link(server_at(f"127.0.0.1:{farm.port}"), old.serial), root=old.root, tools=tools) as device:
        model = save_giver(tmp_path / "m.onnx", 1, 10)
        result = device.run(spec_for(model, tmp_path / "out", options=RunOptions(provider=provider)))
        assert result.status is Status.SKIPPED
        assert result.failure
        assert result.failure.code is kind
        assert "27" in result.failure.what
        assert device.store.pushed_bytes == 0
        assert device.run(spec_for(model, tmp_path / "out")).status is Status.OK


HOSTILE = (
    "a b;$(touch was-here)'\"`touch was-here`",
    "-rf",
    "new\nline;touch was-here",
    "é\t* ? [x] \\",
    "&& touch was-here #",
    "--help",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_files_tensors_and_folders_run_nothing(
    farm: Farm, phone: Phone, tools: Tools, tmp_path: Path, text: str
) -> None:
    """As folder on the device, name and folder of the model's file, name of its input, of its input's file, and id."""
    folder = tmp_path / text
    folder.mkdir()
    model = save_giver(folder / f"{text}.onnx", 3, 100, name=f"x {text}")
    np.ones(1, np.float32).tofile(folder / f"{text}.bin")
    tensor = TensorFile(name=f"x {text}", dtype=ElementType.FLOAT32, shape=(1,), file=str(folder / f"{text}.bin"))
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    with AdbDevice(link, root=f"{phone.root}/{text}", tools=tools) as device:
        spec = RunSpec(
            id=text, model=str(model), inputs=(tensor,), outputs_folder=str(folder / "out"), min_runs=1, profile=True
        )
        result = device.run(spec)
        assert result.status is Status.OK, result.failure
        np.testing.assert_array_equal(np.fromfile(result.outputs[0].file, np.float32), numbers(3, 100))
        assert result.profile_file
        assert Path(result.profile_file).parent == folder / "out"
    places = (tmp_path, phone.folder, Path(phone.root), Path.cwd(), Path("/"))
    assert not [place for place in places if (place / "was-here").exists()]
    assert [path.name for path in Path(f"{phone.root}/{text}").iterdir()] == ["store"]
