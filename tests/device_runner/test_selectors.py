"""Devices by what selects them, the lease of each, and the table of Snapdragon chips."""

from pathlib import Path

import msgspec
import pytest

from device_runner.adb.link import Server, lease_key, server_at
from device_runner.device import DeviceFacts, is_selector, parse_selector, split_server
from device_runner.errors import SpecError
from device_runner.providers import CHIPS, chip_named, chip_of_phone

PIXEL = DeviceFacts(
    name="adb:8A1X", platform="android", manufacturer="Google", model="Pixel 7", soc="Google Tensor G2",
    abis=("arm64-v8a",), api_level=33,
)  # fmt: skip
LINUX = msgspec.structs.replace(PIXEL, platform="linux", model="", api_level=0)


@pytest.mark.parametrize(
    "text",
    ["*", "8a1*", "model=pixel*", "model=google pixel ?", "abi=arm64-v8a", "api=33", "api=29-33", "api=30-", "api=-33",
     "soc=*tensor*, api=33 ,serial=8A1X"],
)  # fmt: skip
def test_what_selects_a_phone(text: str) -> None:
    assert is_selector(text)
    assert parse_selector(text)(PIXEL)


@pytest.mark.parametrize("text", ["9*", "model=Pixel", "abi=x86_64", "api=32", "api=-32", "api=34-", "api=33,abi=x86"])
def test_what_does_not(text: str) -> None:
    assert not parse_selector(text)(PIXEL)


def test_a_device_without_api_level_is_in_no_range() -> None:
    assert not parse_selector("api=-99")(LINUX)
    assert parse_selector("*")(LINUX)


@pytest.mark.parametrize("text", ["modle=x", "model=", "api=x", "api=-", "api=1-2-3", "model=a,,"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_selector(text)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["8A1X", "192.168.0.7:5555", "weird=serial"])
def test_a_serial_is_no_selector(text: str) -> None:
    assert not is_selector(text)


def test_a_selector_may_name_its_adb_server() -> None:
    assert split_server("model=Pixel*,api=29-@lab-2:5037") == ("model=Pixel*,api=29-", "lab-2:5037")
    assert split_server("192.168.0.7:5555@[::1]:5038") == ("192.168.0.7:5555", "[::1]:5038")
    assert split_server("8A1X") == ("8A1X", "")
    assert is_selector("*@lab-2:5037")
    assert not is_selector("8A1X@*")
    far = msgspec.structs.replace(PIXEL, name="adb:8A1X@lab-2:5037")
    assert parse_selector("serial=8A1X")(far)
    assert not parse_selector("*5037")(far)


@pytest.mark.parametrize(
    ("server", "serial", "key"),
    [
        (("127.0.0.1", 5037), "8A1X", "8A1X"),
        (("localhost", 5038), "192.168.0.7:5555", "192.168.0.7:5555"),
        (("localhost", 5038), "emulator-5554", "127.0.0.1:5038 emulator-5554"),
        (("::1", 5037), "127.0.0.1:5555", "127.0.0.1:5037 127.0.0.1:5555"),
        (("lab-2", 5037), "8A1X", "lab-2:5037 8A1X"),
    ],
)
def test_a_device_has_one_lease_by_whichever_server(server: Server, serial: str, key: str) -> None:
    assert lease_key(server, serial) == key


@pytest.mark.parametrize("address", ["x@.:5037", "@..:5037", "@\udcff:5037", f"@{'a' * 64}.example:5037"])
def test_an_address_that_no_host_can_have_is_a_clear_error(address: str) -> None:
    with pytest.raises(SpecError, match="no name of a host") as caught:
        server_at(split_server(address)[1])
    assert "HOST:PORT" in caught.value.remedy


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
    assert not parse_selector("chip=SM8550")(msgspec.structs.replace(phone, soc="Google Tensor G3"))
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
