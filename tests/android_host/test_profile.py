"""Driver profiles: JSON in, lines for C out, and what is wrong named."""

import json
from pathlib import Path

import pytest

from device_runner.android_host.device import (
    Driver,
    DriverProfile,
    DriverStage,
    Fault,
    FaultKind,
    default_profile,
    encode_profile,
    operand_type_codes,
    operation_codes,
    read_profile,
)
from device_runner.device import DriverType
from device_runner.errors import SpecError


def test_lines_say_what_the_values_say() -> None:
    driver = Driver(name="npu", type=DriverType.GPU, feature_level=29, operations=("CONV_2D",), operand_types=())
    fault = Fault(stage=DriverStage.RUN, kind=FaultKind.LOST, first=2, count=1)
    profile = DriverProfile(
        devices=(driver,), feature_level=1000006, delays_ns={DriverStage.COMPILE: 5}, faults=(fault,)
    )
    lines = [
        "level 1000006",
        "device npu 3 29 1",
        "operation 3",
        "type 255",
        "delay compile 5",
        "fault run lost 5 2 1 0",
    ]
    assert encode_profile(profile, 31).splitlines() == lines
    assert encode_profile(profile, 29).splitlines()[0] == "level 29"


def test_the_default_has_an_accelerator_and_the_reference() -> None:
    assert [driver.name for driver in default_profile(29).devices] == ["android-host", "nnapi-reference"]
    assert {driver.feature_level for driver in default_profile(34).devices} == {31}
    assert {driver.feature_level for driver in default_profile(21).devices} == {27}


def test_names_come_from_the_definitions_that_c_includes() -> None:
    assert operation_codes()["RESIZE_NEAREST_NEIGHBOR"] == 94
    assert operation_codes()["CONV_2D"] == 3
    assert operand_type_codes()["TENSOR_QUANT8_SYMM_PER_CHANNEL"] == 11


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"devices": [{"name": "a b", "feature_level": 30}]}, "name"),
        ({"devices": [{"name": "a", "feature_level": 5}]}, "feature_level"),
        ({"devices": [{"name": "a", "feature_level": 30, "operations": ["CONV"]}]}, "no operation is called CONV"),
        ({"devices": [], "faults": [{"stage": "never"}]}, "never"),
        ({"devices": [], "faults": [{"stage": "compile", "kind": "nan"}]}, "compile has no outputs"),
        ({"devices": [], "extra": 1}, "extra"),
        ({"devices": [], "version": 9}, "reads version 1"),
        ([], "Expected `object`"),
    ],
)
def test_wrong_profiles_are_refused_by_name(tmp_path: Path, document: object, why: str) -> None:
    path = tmp_path / "driver.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError) as caught:
        read_profile(path)
    assert why in caught.value.why
    assert caught.value.where == str(path)
