"""The table of Snapdragon chips."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from device_runner.device import DeviceFacts, parse_selector
from device_runner.errors import SpecError
from device_runner.providers import CHIPS, chip_named, chip_of_phone


@pytest.mark.parametrize(
    ("soc_model", "name"),
    [("SM8650", "SM8650"), ("SM8550-AC", "SM8550"), (" sm8750 ", "SM8750"), ("SM8650P", "SM8650"), ("Tensor G3", None)],
)
def test_a_phone_names_its_chip(soc_model: str, name: str | None) -> None:
    chip = chip_of_phone(soc_model)
    assert (chip.name if chip else None) == name


def test_the_compiler_is_told_number_and_generation() -> None:
    assert chip_named("SM8650").options == {"soc_model": "57", "htp_arch": "75"}


def test_the_page_lists_them() -> None:
    page = Path("docs/npu.md").read_text("utf-8")
    for row in CHIPS.values():
        assert f"| {row.name} | {row.title} | V{row.htp_arch} | {'yes' if row.floats else 'no'} |" in page


def test_numbers_are_of_one_chip_each() -> None:
    assert len({row.soc_model for row in CHIPS.values()}) == len(CHIPS)


def test_phones_are_asked_for_by_their_chip() -> None:
    phone = DeviceFacts(name="adb:1", platform="android", soc="QTI SM8550-AC")
    assert parse_selector("chip=SM8550")(phone)
    assert not parse_selector("chip=SM8650")(phone)
    assert not parse_selector("chip=SM8550")(replace(phone, soc="Google Tensor G3"))
    with pytest.raises(SpecError, match="no Snapdragon chip is called 'SM9'"):
        parse_selector("chip=SM9")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [("SM865", "did you mean SM8650?"), ("Exynos", "SM8650 (Snapdragon 8 Gen 3)"), ("SM8650+SM8750", "SM8750")],
)
def test_a_chip_without_a_row_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        chip_named(text)
    assert remedy in caught.value.remedy
