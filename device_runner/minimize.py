"""Which part of some run options is to blame for a failure, and a list of what is known to fail on which devices."""

import fcntl
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import fields, replace

from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.reading import decode_json, read_regular
from device_runner.result import Failure, FailureKind, Struct
from device_runner.spec import RunOptions

Part = tuple[str, str]
"""A field of RunOptions, and a key or flag within it ("" for a plain value)."""

WITHIN = ("flags", "provider_options", "session_config")
"""Fields that consist of parts; the others are one part each where they differ from their default."""


def parts(options: RunOptions) -> list[Part]:
    """Everything in the options that can be left out; the provider cannot."""
    inner = [(name, str(key)) for name in WITHIN for key in getattr(options, name)]
    plain = [field for field in fields(options) if field.name not in (*WITHIN, "provider")]
    return inner + [(field.name, "") for field in plain if getattr(options, field.name) != field.default]


def without(options: RunOptions, part: Part) -> RunOptions:
    """The options with that part left out."""
    name, key = part
    if name == "flags":
        return replace(options, flags=tuple(flag for flag in options.flags if flag != key))
    if name in WITHIN:
        return replace(options, **{name: {k: v for k, v in getattr(options, name).items() if k != key}})
    default = next(field.default for field in fields(options) if field.name == name)
    return replace(options, **{name: default})


def smallest_failing(options: RunOptions, fails: Callable[[RunOptions], bool]) -> RunOptions:
    """Options that still fail, and would not with any one part less.

    `fails` runs them, on a device mostly: it is asked at most once for each subset that is met.
    """
    known: dict[str, bool] = {}

    def still_fails(candidate: RunOptions) -> bool:
        key = msgspec.json.encode(candidate).decode()
        if key not in known:
            known[key] = fails(candidate)
        return known[key]

    smaller = options
    while True:
        candidates = (without(smaller, part) for part in parts(smaller))
        found = next((candidate for candidate in candidates if still_fails(candidate)), None)
        if found is None:
            return smaller
        smaller = found


class DeviceClass(Struct, frozen=True, kw_only=True):
    """Devices that fail alike: the same chip (or model, where it does not tell) at the same API level."""

    chip: str
    api_level: int


def class_of(facts: DeviceFacts) -> DeviceClass:
    """The class of a device."""
    return DeviceClass(chip=facts.soc or facts.model, api_level=facts.api_level)


class Denied(Struct, frozen=True, kw_only=True):
    """Options that fail on a class of devices with a release, and what was seen.

    `model_sha256` is of the only model that is meant; None means every one.
    """

    devices: DeviceClass
    options: RunOptions
    model_sha256: str | None = None
    ort_version: str
    kind: FailureKind
    message: str
    seen_at: str


def denial(
    facts: DeviceFacts, options: RunOptions, entries: Iterable[Denied], model_sha256: str = ""
) -> Failure | None:
    """Why these options are not to be tried on that device: an entry all of whose parts they have. None to go on."""
    own = set(_values(options))
    for entry in entries:
        same = entry.devices == class_of(facts) and entry.options.provider == options.provider
        meant = entry.model_sha256 in (None, model_sha256)
        if same and meant and set(_values(entry.options)) <= own:
            return Failure(
                kind=FailureKind.DENIED,
                message=f"{entry.kind.value} on {entry.devices.chip}, API level {entry.devices.api_level},"
                f" with ONNX Runtime {entry.ort_version} on {entry.seen_at[:10]}: {entry.message}",
                cause="these options are known to fail on such devices",
                remedy="remove the entry from the deny list to try again",
            )
    return None


def _values(options: RunOptions) -> list[tuple[str, str, str]]:
    """The parts with their values."""
    values = []
    for name, key in parts(options):
        field = getattr(options, name)
        values.append((name, key, str(field[key]) if isinstance(field, dict) else "" if key else str(field)))
    return values


def read_denied(path: Path) -> list[Denied]:
    """The deny list of a file, empty when there is none; raises RunnerError for another file."""
    try:
        return decode_json(read_regular(path), list[Denied])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise RunnerError(
            "the deny list cannot be read", where=str(path), why=str(error), remedy="fix or remove the file"
        ) from error


def add_denied(path: Path, entry: Denied) -> list[Denied]:
    """The list with one more entry (an equal one replaced), written in one step; raises RunnerError, OSError.

    Two processes that add at once take turns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = [one for one in read_denied(path) if _subject(one) != _subject(entry)] + [entry]
        part = path.with_name(path.name + ".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")
        part.replace(path)
    return entries


def _subject(entry: Denied) -> tuple[DeviceClass, RunOptions, str | None]:
    return entry.devices, entry.options, entry.model_sha256
