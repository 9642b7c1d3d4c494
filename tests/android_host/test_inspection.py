"""Profiles from phones: what a driver is asked, and that the profile made of its answers answers the same."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_runner.android_host import inspection
from device_runner.android_host.device import (
    Driver,
    DriverProfile,
    DriverRefusal,
    DriverStage,
    Fault,
    FaultKind,
    Phone,
    default_profile,
    operand_type_codes,
    operation_codes,
    parse_phone,
    read_profile,
)
from device_runner.android_host.inspection import Question, ask_device, inspect_phone, make_profile, questions
from device_runner.build import build_probe
from device_runner.device import DeviceFacts, DriverType
from device_runner.errors import RunnerError, UnavailableError
from device_runner.host_device import check_host
from device_runner.local import LocalDevice
from device_runner.probe.protocol import NnapiAnswer, NnapiDeviceAnswer, ProbeAnswer, decode_answer, encode_inspection
from device_runner.result import Failure, FailureKind, Status
from tests.android_host.fake_nnapi import FakeModel

try:
    check_host()
except UnavailableError as missing:
    pytest.skip(f"android-host: {missing}", allow_module_level=True)


class FakePhone(LocalDevice):
    """The probe in a process with the shims and the fake NNAPI: what android-host does, without a library."""

    def __init__(self, profile: DriverProfile, api_level: int, folder: Path, *, probe: Path | None = None) -> None:
        self._api_level = api_level
        environment = Phone(api_level=api_level, driver=profile).environment(folder)
        super().__init__(probe or build_probe(), environment=environment)

    def facts(self) -> DeviceFacts:
        return DeviceFacts(name="fake", platform="android", api_level=self._api_level, model="Phone One", soc="X1")


def inspected(profile: DriverProfile, api_level: int, folder: Path) -> DriverProfile:
    """What inspecting a phone with that profile gives, without the words about the phone."""
    found = inspect_phone(FakePhone(profile, api_level, folder))
    assert (found.api_level, found.phone) == (api_level, "Phone One, X1")
    return msgspec.structs.replace(found, api_level=None, phone="")


def test_every_operation_of_the_fake_driver_is_asked_about() -> None:
    assert {one.operation for one in questions()} == set(operation_codes())
    assert len({(one.operation, one.types) for one in questions()}) == len(questions())
    assert {one.level for one in questions()} == {27, 28, 29, 30}
    assert all(operand.type in operand_type_codes() for one in questions() for operand in one.operands)


def run_question(one: Question) -> int:
    """The code that compiling and computing the question's model with the fake driver ends with."""
    with FakeModel() as model:
        indices, outputs = [], {}
        for position, operand in enumerate(one.operands):
            index = model.operand(operand.type, operand.shape, operand.quantization[0])
            indices.append(index)
            size = 4 if operand.type in ("TENSOR_FLOAT32", "TENSOR_INT32") else 1
            array = np.zeros(int(np.prod(operand.shape)) * size, np.uint8)
            if operand.value is not None:
                model.set_value(index, np.frombuffer(operand.value, np.uint8))
            elif position >= len(one.operands) - one.results:
                outputs[index] = array
            else:
                model.inputs.append((index, array))
            if operand.channel_dimension is not None:
                channels = np.full(operand.shape[operand.channel_dimension], 0.5, np.float32)
                model.set_channels(index, channels, operand.channel_dimension)
        model.operation(one.operation, indices[: -one.results], indices[-one.results :])
        return model.run(outputs)


@pytest.mark.parametrize("one", questions(), ids=lambda one: f"{one.operation}-{'-'.join(sorted(one.types))}")
def test_questions_are_models_that_can_be_computed(one: Question) -> None:
    assert run_question(one) == 0


FLOATS = ("TENSOR_FLOAT32", "INT32", "BOOL")
BYTES = ("TENSOR_INT32", "TENSOR_QUANT8_ASYMM")
NPU = Driver(name="npu", feature_level=30, version="1.4")
CPU = Driver(name="nnapi-reference", type=DriverType.CPU, feature_level=29)


def in_order(names: Sequence[str], codes: dict[str, int]) -> tuple[str, ...]:
    return tuple(sorted(names, key=codes.__getitem__))


def told(types: Sequence[str]) -> tuple[str, ...]:
    return in_order(types, operand_type_codes())


PROFILES = {
    "takes all": DriverProfile(devices=(NPU, CPU)),
    "takes nothing": DriverProfile(devices=(msgspec.structs.replace(NPU, operations=()),)),
    "some operations": DriverProfile(
        devices=(msgspec.structs.replace(NPU, operations=("ADD", "CONV_2D", "RELU"), operand_types=told(FLOATS)), CPU)
    ),
    "quantized only": DriverProfile(
        devices=(
            msgspec.structs.replace(
                NPU, operations=("ADD", "CONV_2D", "TRANSPOSE"), operand_types=told((*BYTES, "INT32", "BOOL"))
            ),
        )
    ),
    "no weights by channel": DriverProfile(
        devices=(
            msgspec.structs.replace(
                NPU,
                refuses=(
                    DriverRefusal(
                        operation="CONV_2D",
                        operand_types=told((*BYTES, "INT32", "BOOL", "TENSOR_QUANT8_SYMM_PER_CHANNEL")),
                    ),
                ),
            ),
        )
    ),
    "an old driver": DriverProfile(devices=(msgspec.structs.replace(CPU, feature_level=27),)),
    "no device": DriverProfile(devices=()),
}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("api_level", [30, 31])
def test_inspecting_a_profile_gives_it_back(name: str, api_level: int, tmp_path: Path) -> None:
    assert inspected(PROFILES[name], api_level, tmp_path) == PROFILES[name]


def test_the_default_profile_comes_back_with_its_runtimes_level(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(default_profile(31), feature_level=1_000_006)
    assert inspected(profile, 33, tmp_path) == profile


def test_below_level_29_devices_have_no_names(tmp_path: Path) -> None:
    assert inspected(PROFILES["takes all"], 28, tmp_path) == PROFILES["no device"]
    with pytest.raises(UnavailableError, match="no NNAPI"):
        inspect_phone(FakePhone(PROFILES["takes all"], 26, tmp_path))


OPERATIONS = sorted(operation_codes())
TYPES = sorted(operand_type_codes())
LEVELS = st.sampled_from([27, 28, 29, 30, 31, 1_000_007])


def subsets(names: Sequence[str]) -> st.SearchStrategy[tuple[str, ...] | None]:
    return st.none() | st.sets(st.sampled_from(names), min_size=len(names) // 2).map(lambda found: tuple(sorted(found)))


REFUSALS = st.sampled_from(questions()).map(
    lambda one: DriverRefusal(operation=one.operation, operand_types=tuple(sorted(one.types)))
)
DRIVERS = st.builds(
    Driver,
    name=st.sampled_from(["npu", "gpu!", "x" * 63]),
    type=st.sampled_from(DriverType),
    feature_level=LEVELS,
    operations=subsets(OPERATIONS),
    operand_types=subsets(TYPES),
    refuses=st.lists(REFUSALS, max_size=12, unique=True).map(tuple),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drivers=st.lists(DRIVERS, max_size=3), api_level=st.integers(29, 33))
def test_a_profile_from_answers_answers_the_same(drivers: list[Driver], api_level: int, tmp_path: Path) -> None:
    """Whatever the lists are: what is read from answers gives the same answers, and itself when it is inspected."""
    phone = FakePhone(DriverProfile(devices=tuple(drivers), feature_level=31), api_level, tmp_path)
    asked = questions()
    first = ask_device(phone, asked)
    profile = make_profile(phone.facts(), first, asked)
    replayed = FakePhone(profile, api_level, tmp_path)
    for one, other in zip(first.devices, ask_device(replayed, asked).devices, strict=True):
        level = max(one.level, 27)
        left, right = (
            [letter for question, letter in zip(asked, device.answers, strict=True) if question.level <= level]
            for device in (one, other)
        )
        assert left == right
    assert inspect_phone(replayed) == profile


def test_a_crash_costs_one_question(tmp_path: Path) -> None:
    fault = Fault(stage=DriverStage.MODEL, kind=FaultKind.CRASH, first=40)
    phone = FakePhone(DriverProfile(devices=(NPU, CPU), faults=(fault,)), 30, tmp_path)
    answers = {device.answers for device in ask_device(phone, questions()).devices}
    assert len(answers) == 2
    for letters in answers:
        assert len(letters) == len(questions())
        assert [place for place, letter in enumerate(letters) if letter == "e"] == [39]
    (driver, _) = inspect_phone(phone).devices
    crashed = questions()[39]
    assert driver.refuses == (DriverRefusal(operation=crashed.operation, operand_types=told(tuple(crashed.types))),)


def test_a_driver_that_crashes_always_is_left_alone(tmp_path: Path) -> None:
    fault = Fault(stage=DriverStage.MODEL, kind=FaultKind.CRASH)
    phone = FakePhone(DriverProfile(devices=(NPU,), faults=(fault,)), 30, tmp_path)
    (driver,) = inspect_phone(phone).devices
    assert driver.operations == ()


def test_a_hang_costs_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "LIMIT_SECONDS", 0.5)
    fault = Fault(stage=DriverStage.MODEL, kind=FaultKind.HANG, first=50)
    phone = FakePhone(DriverProfile(devices=(NPU,), faults=(fault,)), 30, tmp_path)
    (device,) = ask_device(phone, questions()).devices
    assert device.answers.count("e") == 1
    assert device.answers[49] == "e"


class Saying(LocalDevice):
    """A phone whose answers are given."""

    def __init__(self, *answers: ProbeAnswer | Failure) -> None:
        super().__init__(Path(), name="adb:liar")
        self._answers = list(answers)

    def facts(self) -> DeviceFacts:
        return DeviceFacts(name=self.name, platform="android", api_level=30)

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> ProbeAnswer | Failure:
        return self._answers.pop(0)


def answer(told: NnapiAnswer, status: Status = Status.OK) -> ProbeAnswer:
    values = dict.fromkeys(ProbeAnswer.__struct_fields__, 0)
    texts = dict.fromkeys(("stage", "kind", "message", "signal", "ort_version", "stop", "profile"), "")
    lists: dict[str, list[object]] = {key: [] for key in ("available_providers", "log", "latencies_ns", "outputs")}
    return ProbeAnswer(**{**values, **texts, **lists, "status": status, "nnapi": told})  # type: ignore[arg-type]  # by name


def told_device(name: str, answers: str, level: int = 30) -> NnapiDeviceAnswer:
    return NnapiDeviceAnswer(name=name, version="1", type=4, level=level, answers=answers)


def test_what_does_not_answer_is_named() -> None:
    half = NnapiAnswer(is_there=True, level=0, devices=(told_device("npu", "yy"),))
    none = NnapiAnswer(is_there=False, level=0, devices=())
    other = NnapiAnswer(is_there=True, level=0, devices=(told_device("gpu", "y"),))
    empty = NnapiAnswer(is_there=True, level=0, devices=())
    with pytest.raises(RunnerError, match="gave no answers"):
        inspect_phone(Saying(answer(half)))
    with pytest.raises(UnavailableError, match="has no NNAPI"):
        inspect_phone(Saying(answer(none)))
    with pytest.raises(RunnerError, match="gave no answers"):
        inspect_phone(Saying(answer(empty, Status.FAILED)))
    with pytest.raises(RunnerError, match="gave no answers"):
        inspect_phone(Saying(answer(none, Status.FAILED)))
    with pytest.raises(RunnerError, match="other devices"):
        inspect_phone(Saying(answer(half, Status.FAILED), answer(other, Status.FAILED)))
    with pytest.raises(RunnerError) as caught:
        inspect_phone(Saying(Failure(code=FailureKind.LOST_DEVICE, what="gone", remedy="plug it in")))
    assert (caught.value.why, caught.value.remedy) == ("gone", "plug it in")


@given(
    st.lists(
        st.builds(
            NnapiDeviceAnswer,
            name=st.text(max_size=300),
            version=st.text(max_size=300),
            type=st.integers(-(2**31), 2**31 - 1),
            level=st.integers(0, 2_000_000_000),
            answers=st.text("ynxe", min_size=len(questions()), max_size=len(questions())),
        ),
        max_size=16,
    ),
    st.integers(27, 99),
)
def test_any_answers_make_a_profile_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, devices: list[NnapiDeviceAnswer], api_level: int
) -> None:
    facts = DeviceFacts(name="x", platform="android", api_level=api_level)
    profile = make_profile(facts, NnapiAnswer(is_there=True, level=0, devices=tuple(devices)), questions())
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(msgspec.json.encode(profile))
    assert read_profile(path) == profile


def test_a_devices_profile_is_replayed_at_its_own_level(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(PROFILES["takes all"], api_level=29, phone="Phone One")
    path = tmp_path / "phone.json"
    path.write_bytes(msgspec.json.encode(profile))
    assert parse_phone({"driver": str(path)}, "x").api_level == 29
    assert parse_phone({"driver": str(path), "api_level": "33"}, "x").api_level == 33
    assert parse_phone({}, "x").api_level == 31


WRONG = (
    [("question", "a", "")],
    [("operand", "3", "1,2")],
    [("question", "a", ""), ("operation", "3", "1")],
    [("question", "a", ""), ("value", "", "00")],
    [("question", "a", ""), ("operand", "3", "2"), ("value", "", "0")],
    [("question", "a", ""), ("operand", "3", "2"), ("value", "", "00" * 200)],
    [("question", "a", ""), ("operand", "99", "2"), ("operation", "0", "9")],
    [("question", "a", ""), ("operand", "3", "x"), ("scale", "y", "")],
    [("question", "a", ""), ("channels", "0", "1,2,3"), ("operand", "11", "3"), ("channels", "9", ",".join("1" * 60))],
    [("question", "a", ""), *[("operand", "3", "1")] * 40, ("operation", "0", "1")],
    [("question", "a", ""), ("operand", "3", "1"), ("operation", "4294967296", "1")],
    [("question", "a", "")] * 1100,
)


@pytest.mark.native
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize("asked", [[line for one in questions() for line in one.triples()], *WRONG])
def test_questions_are_clean_under_sanitizers(asked: list[tuple[str, str, str]], tmp_path: Path) -> None:
    flags = ("-g", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DPROBE_EXIT=exit")
    environment = Phone(api_level=30, driver=PROFILES["takes all"]).environment(tmp_path)
    (tmp_path / "request").write_bytes(encode_inspection(asked, limit_seconds=20.0))
    done = subprocess.run(
        [str(build_probe(flags=flags)), str(tmp_path / "request")],
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    assert b"Sanitizer" not in done.stderr, done.stderr
    assert b"runtime error" not in done.stderr, done.stderr
    found = decode_answer(done.stdout)
    assert isinstance(found, ProbeAnswer)
    wanted = min(sum(line[0] == "question" for line in asked), 1024)
    assert {len(device.answers) for device in found.nnapi.devices} == {wanted}
