"""The device `android-host:LIBRARY`: an Android library of ONNX Runtime in a process of this computer.

Its name may carry options behind a question mark, as in `android-host:app.aar?api_level=29&driver=pixel.json`.
Its times say nothing about a phone; every result is marked so.
"""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl

import msgspec

from device_runner.android_host.build import build_host, check_host, check_imports
from device_runner.android_host.profile import Driver, DriverProfile, default_profile, encode_profile, read_profile
from device_runner.device import DeviceFacts, NnapiDevice
from device_runner.errors import RunnerError, SpecError
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import Library, resolve
from device_runner.local import LocalDevice, host_facts
from device_runner.probe.build import build_probe
from device_runner.probe.protocol import ProbeAnswer
from device_runner.providers import NNAPI_API_LEVEL, NNAPI_DEVICES_API_LEVEL
from device_runner.result import Failure, FailureKind, Mark, RunResult, without_measurement
from device_runner.spec import RunSpec

SCHEME = "android-host"
DEFAULT_API_LEVEL = 31
API_LEVELS = range(21, 100)
OPTIONS = ("api_level", "driver", "calls")


@dataclass(frozen=True, slots=True)
class Phone:
    """What the library is to believe about the phone; `calls` is a file for the record of NNAPI calls."""

    api_level: int = DEFAULT_API_LEVEL
    driver: DriverProfile | None = None
    calls: Path | None = None

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables that shims and the fake NNAPI read; the driver profile is written into `folder`.

        A fake libneuralnetworks.so is always found: without one the provider calls null pointers from level 27 on.
        """
        profile = folder / "driver"
        profile.write_text(encode_profile(self.driver or default_profile(self.api_level), self.api_level), "ascii")
        record = {"ORT_MOBILE_NNAPI_RECORD": str(self.calls.absolute())} if self.calls else {}
        return {
            "LD_LIBRARY_PATH": str(build_host()),
            "ORT_MOBILE_ANDROID_SDK": str(self.api_level),
            "ORT_MOBILE_NNAPI_PROFILE": str(profile),
            **record,
        }


def open_android_host(rest: str) -> "AndroidHost":
    """The device that `android-host:REST` names; raises SpecError for a bad option, UnavailableError for no library."""
    check_host()
    text, _, query = rest.partition("?")
    phone = parse_phone(query, f"{SCHEME}:{rest}")
    if not text:
        raise SpecError(
            f"{SCHEME} needs a library",
            remedy=f"write `{SCHEME}:` and an AAR, a libonnxruntime.so, or a release such as 1.29.0",
        )
    library = resolve(text).android()
    check_imports(library.imports, library.needed, where=library.path)
    return AndroidHost(f"{SCHEME}:{rest}", library, phone)


def parse_phone(query: str, where: str) -> Phone:
    """The phone that options such as `api_level=29&driver=x.json` describe; raises SpecError that names `where`."""
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown or len(options) != len(pairs) or (query and not pairs):
        what = f"unknown option {unknown[0]!r}" if unknown else "these options cannot be read"
        raise SpecError(
            what, where=where, remedy=f"options are {', '.join(OPTIONS)}, as in ?api_level=29&driver=x.json"
        )
    driver = read_profile(Path(options["driver"])) if "driver" in options else None
    default = (driver and driver.api_level) or DEFAULT_API_LEVEL
    return Phone(
        api_level=_parse_level(options.get("api_level", str(default)), where),
        driver=driver,
        calls=Path(options["calls"]) if options.get("calls") else None,
    )


def _shown(driver: Driver) -> NnapiDevice:
    return NnapiDevice(name=driver.name, type=driver.type, feature_level=driver.feature_level, version=driver.version)


def _parse_level(text: str, where: str) -> int:
    if text.isascii() and text.isdigit() and int(text) in API_LEVELS:
        return int(text)
    remedy = f"give a number from {API_LEVELS.start} to {API_LEVELS.stop - 1}; NNAPI begins at {NNAPI_API_LEVEL}"
    raise SpecError(f"api_level {text!r} does not exist", where=where, remedy=remedy)


class AndroidHost:
    """Runs specs with an Android library. A spec's own library (AAR or .so) goes before the device's."""

    def __init__(self, name: str, library: LibraryFacts, phone: Phone | None = None) -> None:
        self._name = name
        self._library = library
        self._phone = phone or Phone()
        self._folder = Path(tempfile.mkdtemp(prefix="ort-mobile-android-"))
        try:
            self._local = LocalDevice(build_probe(), environment=self._phone.environment(self._folder))
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The whole name, options included."""
        return self._name

    @property
    def library(self) -> LibraryFacts:
        """The library that it runs."""
        return self._library

    def facts(self) -> DeviceFacts:
        """The phone that it plays, on the hardware that it runs on."""
        profile = self._phone.driver or default_profile(self._phone.api_level)
        nnapi = self._phone.api_level >= NNAPI_API_LEVEL
        return msgspec.structs.replace(
            host_facts(self.name),
            platform="android",
            model=f"libonnxruntime {self._library.release} in a process of this computer, not a phone",
            abis=("x86_64",),
            api_level=self._phone.api_level,
            nnapi=nnapi,
            nnapi_devices=tuple(map(_shown, profile.devices))
            if self._phone.api_level >= NNAPI_DEVICES_API_LEVEL
            else (),
        )

    def library_for(self, given: str | None) -> Library:
        """The given library, else the one in its name."""
        return resolve(given or self._library.path)

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec in a fresh process; what the library does, a crash included, is in the result."""
        try:
            facts = self.library_for(spec.library).android()
            check_imports(facts.imports, facts.needed, where=facts.path)
        except RunnerError as error:
            kind = FailureKind.WRONG_LIBRARY
            failure = Failure(kind=kind, message=str(error), cause=error.why, remedy=error.remedy)
            return without_measurement(spec, self.name, failure)
        result = self._local.run(msgspec.structs.replace(spec, library=facts.path))
        return msgspec.structs.replace(result, device=self.name, marks=(*result.marks, Mark.NOT_A_PHONE))

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> ProbeAnswer | Failure:
        """What the fake NNAPI says to these questions, with the phone's driver profile."""
        return self._local.inspect(asked, limit_seconds)

    def close(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
