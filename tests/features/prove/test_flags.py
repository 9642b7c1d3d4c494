"""Flags that change nothing, or cost something, told from recorded calls."""

import pytest

from device_runner.android_host.device import Driver, DriverProfile, Phone
from device_runner.android_host.inspection import CallSummary
from device_runner.device import DriverType
from device_runner.spec import NnapiFlag
from pipeline.check.library_proof import FindingKind
from pipeline.core.errors import Severity
from pipeline.features.prove.calls import NEEDS, claims_nothing, effect
from tests.values import present

WHOLE = CallSummary(partitions=(("TRANSPOSE", "CONV_2D", "TRANSPOSE", "RELU"),), nchw=False, compiled_for=0)
PLAIN = CallSummary(partitions=(("CONV_2D", "RELU"),), nchw=True, compiled_for=0)
LESS = CallSummary(partitions=(("RELU",),), compiled_for=0)


CPU = Driver(name="cpu", type=DriverType.CPU, feature_level=30)
GPU = Driver(name="gpu", type=DriverType.GPU, feature_level=30)


def phone(level: int, *devices: Driver) -> Phone:
    return Phone(api_level=level, driver=DriverProfile(devices=devices) if devices else None)


@pytest.mark.parametrize("flag", list(NnapiFlag))
def test_every_flag_has_a_reason_below_its_level_and_one_above(flag: NnapiFlag) -> None:
    since, why = NEEDS[flag]
    (below,) = effect(flag, phone(since - 1), WHOLE, WHOLE)
    (above,) = effect(flag, phone(since), WHOLE, WHOLE)
    assert below.code is above.code is FindingKind.FLAG_WITHOUT_EFFECT
    assert below.severity is Severity.WARNING
    assert below.why == why != above.why
    assert f"below API level {since}" in below.remedy
    assert "below" not in above.remedy


@pytest.mark.parametrize(
    ("flag", "calls", "devices", "why"),
    [
        (NnapiFlag.USE_NCHW, LESS, (GPU, CPU), "no convolution"),
        (NnapiFlag.USE_NCHW, PLAIN, (GPU, CPU), "not known"),
        (NnapiFlag.USE_FP16, PLAIN, (GPU, CPU), "not known"),
        (NnapiFlag.CPU_DISABLED, PLAIN, (GPU,), "no CPU device"),
        (NnapiFlag.CPU_DISABLED, PLAIN, (CPU,), "no other device than a CPU"),
        (NnapiFlag.CPU_DISABLED, PLAIN, (GPU, CPU), "not known"),
        (NnapiFlag.CPU_ONLY, PLAIN, (GPU,), "no CPU device"),
        (NnapiFlag.CPU_ONLY, PLAIN, (CPU,), "CPU devices only"),
        (NnapiFlag.CPU_ONLY, PLAIN, (GPU, CPU), "not known"),
    ],
)
def test_a_cause_is_named_where_calls_and_devices_show_it(
    flag: NnapiFlag, calls: CallSummary, devices: tuple[Driver, ...], why: str
) -> None:
    (found,) = effect(flag, phone(30, *devices), calls, calls)
    assert why in found.why


def test_a_change_of_layout_alone_costs_nothing() -> None:
    assert list(effect(NnapiFlag.USE_NCHW, phone(30), PLAIN, WHOLE)) == []


def test_operations_that_a_flag_costs_are_counted() -> None:
    (found,) = effect(NnapiFlag.USE_NCHW, phone(28), LESS, WHOLE)
    assert found.code is FindingKind.FLAG_COSTS_NODES
    assert "takes 1 operations at API level 28, 2 without" in found.what
    assert found.why.endswith("left to the CPU with it: CONV_2D (1)")


@pytest.mark.parametrize(("level", "told"), [(24, "begins at API level 27"), (30, "everything ran on the CPU")])
def test_nothing_claimed_says_why(level: int, told: str) -> None:
    for summary in (None, CallSummary()):
        found = present(claims_nothing(summary, level))
        assert told in found.why
    assert claims_nothing(LESS, level) is None
