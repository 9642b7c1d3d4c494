"""What is asked of a proof, and the runs that answer it. Pure functions over a bundle's manifest."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from device_runner.android_host.device import DEFAULT_API_LEVEL
from device_runner.android_host.profile import DriverProfile
from device_runner.providers import NNAPI_API_LEVEL
from device_runner.spec import RunOptions
from pipeline.campaign.options import options_name
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.release.manifest import Content, Shipped

NEWEST_LEVEL = DEFAULT_API_LEVEL
"""The newest API level at which NNAPI behaves otherwise than below: from it on its runtime tells its own level."""
ANDROID = "android"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOrder:
    """What to run a bundle with.

    `library` is an AAR, a libonnxruntime.so or a release; `targets` are names, () for all of Android's; `api_levels` ()
    are each target's lowest and the newest. `driver` is what NNAPI is on the phone that is played.
    """

    library: str
    targets: tuple[str, ...] = ()
    api_levels: tuple[int, ...] = ()
    driver: DriverProfile | None = None
    timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTrial:
    """An artifact, a way to run it, and an API level; `targets` are those that it ships to so."""

    shipped: Shipped
    options: RunOptions
    api_level: int
    targets: tuple[str, ...]
    chosen: bool

    @property
    def run(self) -> str:
        """The way to run it, as tables name it."""
        return options_name(self.options)


def wanted_targets(content: Content, order: ProofOrder) -> tuple[list[Shipped], list[str]]:
    """What of a bundle the library is for, and the names of the targets that are another platform's.

    Raises ConfigError when that is nothing, or a target that is asked for is not in the bundle; CheckFailed for an
    artifact that is none of the bundle's files.
    """
    files = {file.path for file in content.files}
    if strangers := [shipped.file for shipped in content.ships if shipped.file not in files]:
        why = "it ships what is none of its files, and so was never verified"
        raise CheckFailed(
            "the manifest contradicts itself", where=strangers[0], why=why, remedy="make the bundle again"
        )
    known = dict.fromkeys(shipped.target for shipped in content.ships)
    if unknown := [name for name in order.targets if name not in known]:
        raise ConfigError(f"the bundle has no target {unknown[0]!r}", remedy=f"it ships to {', '.join(known)}")
    asked = [shipped for shipped in content.ships if not order.targets or shipped.target in order.targets]
    wanted = [shipped for shipped in asked if shipped.platform == ANDROID]
    if not wanted:
        named = ", ".join(f"{shipped.target} ({shipped.platform})" for shipped in asked)
        raise ConfigError(
            "there is nothing for Android to prove",
            why=f"of the bundle's targets these were asked for: {named or 'none'}",
            remedy="prove it on a device of that platform (`ort-mobile run --device ...`)",
        )
    return wanted, list(dict.fromkeys(shipped.target for shipped in asked if shipped.platform != ANDROID))


def trials_of(wanted: list[Shipped], order: ProofOrder) -> list[ProofTrial]:
    """Every run, the lowest API level first; what several targets have in common is run once."""
    found: dict[bytes, ProofTrial] = {}
    for shipped in wanted:
        for trial in _trials(shipped, order):
            key = msgspec.json.encode((shipped.file, trial.options, trial.api_level), order="sorted")
            known = found.get(key, trial)
            targets = tuple(dict.fromkeys((*known.targets, shipped.target)))
            found[key] = replace(known, targets=targets, chosen=known.chosen or trial.chosen)
    return sorted(found.values(), key=lambda trial: trial.api_level)


def _trials(shipped: Shipped, order: ProofOrder) -> Iterator[ProofTrial]:
    for level in order.api_levels or levels_of(shipped):
        for number, options in enumerate(shipped.runs or (_chosen(shipped),)):
            yield ProofTrial(
                shipped=shipped, options=options, api_level=level, targets=(shipped.target,), chosen=number == 0
            )


def levels_of(shipped: Shipped) -> tuple[int, ...]:
    """The lowest API level of a target (NNAPI's first where the config names none), and the newest."""
    lowest = shipped.min_api_level or NNAPI_API_LEVEL
    return tuple(dict.fromkeys((lowest, max(lowest, NEWEST_LEVEL))))


def _chosen(shipped: Shipped) -> RunOptions:
    """The options of a manifest of version 1, which had no list of runs."""
    given = {"provider": shipped.provider, "provider_options": shipped.provider_options, "flags": shipped.flags,
             "session_config": shipped.session_config}  # fmt: skip
    try:
        return msgspec.convert(given, RunOptions)
    except msgspec.ValidationError as error:
        raise ConfigError("the manifest has run options that are none", where=shipped.file, why=str(error)) from error
