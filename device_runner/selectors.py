"""Which of the devices that are there a config means: a serial, or conditions on their facts, and of which server."""

import difflib
import fnmatch
import re
from collections.abc import Callable

from device_runner.device import DeviceFacts
from device_runner.errors import SpecError

Test = Callable[[DeviceFacts], bool]


def _glob(pattern: str) -> Callable[[str], bool]:
    return lambda text: fnmatch.fnmatchcase(text.lower(), pattern.lower())


def _model(pattern: str) -> Test:
    fits = _glob(pattern)
    return lambda facts: fits(facts.model) or fits(f"{facts.manufacturer} {facts.model}")


def _serial(pattern: str) -> Test:
    fits = _glob(pattern)
    return lambda facts: fits(split_server(facts.name.partition(":")[2])[0])


def _soc(pattern: str) -> Test:
    fits = _glob(pattern)
    return lambda facts: fits(facts.soc) or fits(facts.soc.rpartition(" ")[2])


def _abi(name: str) -> Test:
    return lambda facts: name in facts.abis


def _api(text: str) -> Test:
    """One level, or a range with open ends: 29, 29-33, 29-, -33."""
    found = re.fullmatch(r"(\d{0,2})(-?)(\d{0,2})", text)
    if not found or not (found[1] or found[3]):
        raise SpecError(f"{text!r} is no API level or range", remedy="write api=29, api=29-33, api=29- or api=-33")
    low = int(found[1] or 0)
    high = int(found[3] or 99) if found[2] else low
    return lambda facts: facts.api_level > 0 and low <= facts.api_level <= high


CONDITIONS: dict[str, Callable[[str], Test]] = {
    "serial": _serial,
    "model": _model,
    "soc": _soc,
    "abi": _abi,
    "api": _api,
}
"""Key of a condition to what makes its test; patterns are globs, without regard to case."""


def is_selector(text: str) -> bool:
    """Whether what follows `adb:` means devices by conditions, not one serial."""
    selector, _ = split_server(text)
    return "*" in selector or selector.partition("=")[0].strip() in CONDITIONS


def split_server(text: str) -> tuple[str, str]:
    """A serial or selector, and the address of its adb server behind the last @; "" where none is named."""
    before, at, address = text.rpartition("@")
    return (before, address) if at else (text, "")


def on_network(serial: str) -> bool:
    """Whether a serial is an address that a server can be told to connect: HOST:PORT, or mDNS's name of a service."""
    return bool(re.search(r":\d{1,5}$|\._adb(-tls-connect)?\._tcp", serial))


def parse_selector(text: str) -> Test:
    """A test of facts from `*`, a glob of serials, or `model=Pixel*,abi=arm64-v8a,api=29-33`; raises SpecError."""
    if "=" not in text:
        return _serial(text)
    tests = []
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in CONDITIONS or not value:
            close = difflib.get_close_matches(key, CONDITIONS, n=1)
            hint = f"; did you mean {close[0]}?" if close and close[0] != key else ""
            raise SpecError(
                f"{part.strip()!r} selects no devices", remedy=f"conditions are {', '.join(CONDITIONS)}{hint}"
            )
        tests.append(CONDITIONS[key](value))
    return lambda facts: all(test(facts) for test in tests)
