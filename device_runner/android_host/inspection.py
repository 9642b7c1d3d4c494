"""A driver profile from a phone: its NNAPI is asked about every operation that ONNX Runtime gives it."""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from device_runner.android_host.profile import (
    NEWEST_BELOW_RUNTIME,
    Driver,
    DriverProfile,
    DriverRefusal,
    operand_type_codes,
    operation_codes,
)
from device_runner.android_host.questions import Question, questions
from device_runner.device import DEVICES_API_LEVEL, NNAPI_API_LEVEL, TYPES, DeviceFacts, DriverType
from device_runner.errors import MissingError, RunnerError
from device_runner.probe.protocol import NnapiAnswer, NnapiDeviceAnswer, ProbeAnswer
from device_runner.result import Failure, Status

LIMIT_SECONDS = 20.0
"""For all questions; a driver that is still silent then hangs."""

CRASHES = 8
"""Questions that may end the process before the rest is no longer asked."""

YES, ERROR, IMPOSSIBLE = "y", "e", "x"


class Inspectable(Protocol):
    """A device that can ask its NNAPI."""

    @property
    def name(self) -> str:
        """How configs and results call it."""

    def facts(self) -> DeviceFacts:
        """What it is; raises RunnerError when it cannot be asked."""

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> ProbeAnswer | Failure:
        """What NNAPI there says to these questions (lines of a request), or why nothing came of it."""


def inspect_phone(device: Inspectable) -> DriverProfile:
    """What the phone's NNAPI is and supports, for android-host to replay.

    Below API level 29 NNAPI names no devices, so the profile has none. Raises MissingError for a device without NNAPI,
    RunnerError for one that does not answer.
    """
    facts = device.facts()
    if facts.platform != "android" or facts.api_level < NNAPI_API_LEVEL:
        raise MissingError(
            f"{device.name} has no NNAPI", why=f"it needs Android of API level {NNAPI_API_LEVEL}", remedy="use a phone"
        )
    asked = questions()
    return make_profile(facts, ask(device, asked), asked)


def ask(device: Inspectable, asked: Sequence[Question]) -> NnapiAnswer:
    """Each device's answers to all questions; one that ends the process counts as an error, and the rest is asked on.

    Raises MissingError where there is no NNAPI, RunnerError when the device gives no answers.
    """
    told, rest = _ask_once(device, asked)
    for _ in range(CRASHES):
        if not rest:
            break
        more, rest = _ask_once(device, rest)
        if [one.name for one in more.devices] != [one.name for one in told.devices]:
            raise RunnerError(f"NNAPI of {device.name} named other devices when it was asked again")
        told = msgspec.structs.replace(told, devices=tuple(map(_joined, told.devices, more.devices)))
    lost = len(rest) * ERROR
    return msgspec.structs.replace(told, devices=tuple(_with(one, one.answers + lost) for one in told.devices))


def _ask_once(device: Inspectable, asked: Sequence[Question]) -> tuple[NnapiAnswer, Sequence[Question]]:
    """Answers, and the questions behind one that ended the process."""
    answer = device.inspect([line for one in asked for line in one.triples()], LIMIT_SECONDS)
    if isinstance(answer, Failure):
        raise _silent(device.name, answer.message, answer.remedy)
    if not answer.nnapi.found and answer.status is not Status.OK:
        raise _silent(device.name, answer.message, "")
    if not answer.nnapi.found:
        raise MissingError(f"{device.name} has no NNAPI", why="it has no libneuralnetworks.so", remedy="use a phone")
    whole = min((len(one.answers) for one in answer.nnapi.devices), default=len(asked))
    if answer.status is Status.OK and whole == len(asked):
        return answer.nnapi, ()
    if answer.status is Status.OK or not answer.nnapi.devices:
        raise _silent(device.name, answer.message or "it did not answer all questions", "")
    ended = (_with(one, (one.answers + ERROR)[: whole + 1]) for one in answer.nnapi.devices)
    return msgspec.structs.replace(answer.nnapi, devices=tuple(ended)), asked[whole + 1 :]


def _silent(name: str, why: str, remedy: str) -> RunnerError:
    return RunnerError(
        f"NNAPI of {name} gave no answers", why=why, remedy=remedy or "restart the phone, then try again"
    )


def _with(device: NnapiDeviceAnswer, answers: str) -> NnapiDeviceAnswer:
    return msgspec.structs.replace(device, answers=answers)


def _joined(first: NnapiDeviceAnswer, second: NnapiDeviceAnswer) -> NnapiDeviceAnswer:
    return _with(first, first.answers + second.answers)


def make_profile(facts: DeviceFacts, told: NnapiAnswer, asked: Sequence[Question]) -> DriverProfile:
    """The profile that answers as the phone did."""
    words = (facts.manufacturer, facts.model, facts.soc, facts.os_release, facts.fingerprint)
    return DriverProfile(
        devices=tuple(_driver(device, asked) for device in told.devices if facts.api_level >= DEVICES_API_LEVEL),
        feature_level=_level(told.level) if facts.api_level > NEWEST_BELOW_RUNTIME else NEWEST_BELOW_RUNTIME + 1,
        api_level=facts.api_level,
        phone=", ".join(word for word in words if word),
    )


def _driver(device: NnapiDeviceAnswer, asked: Sequence[Question]) -> Driver:
    """The two lists are what occurs in supported models; what of their combinations is refused is told one by one."""
    level = _level(device.level)
    answers = zip(asked, device.answers, strict=True)
    judged = [(one, answer == YES) for one, answer in answers if one.level <= level and answer != IMPOSSIBLE]
    accepted = [one for one, supported in judged if supported]
    operations = {one.operation for one in accepted}
    types = frozenset[str]().union(*(one.types for one in accepted))
    supported = {(one.operation, one.types) for one in accepted}
    combined = {(one.operation, one.types) for one, _ in judged if one.operation in operations and one.types <= types}
    refused = sorted(combined - supported, key=lambda pair: (pair[0], sorted(pair[1])))
    all_types = frozenset[str]().union(*(one.types for one, _ in judged))
    return Driver(
        name=_word(device.name),
        type=TYPES.get(device.type, DriverType.OTHER),
        feature_level=level,
        version=_word(device.version),
        operations=_listed(operations, {one.operation for one, _ in judged}, operation_codes()),
        operand_types=_listed(types, all_types, operand_type_codes()) if accepted else None,
        refuses=tuple(
            DriverRefusal(operation=operation, operand_types=_listed(found, frozenset(), operand_type_codes()) or ())
            for operation, found in refused
        ),
    )


def _listed(found: Iterable[str], everything: Iterable[str], codes: dict[str, int]) -> tuple[str, ...] | None:
    """Names in the order of their numbers; None, which is "all", when nothing that was asked is left out."""
    names = set(found)
    return None if names == set(everything) else tuple(sorted(names, key=codes.__getitem__))


def _level(level: int) -> int:
    """Drivers that tell no level, or one that NNAPI never had, count as the first."""
    return max(level, NNAPI_API_LEVEL)


def _word(text: str) -> str:
    """A name as driver profiles have it: printable ASCII without blanks, quotes and backslashes."""
    return re.sub(r"[^!#-\[\]-~]", "_", text)[:63] or "_"
