"""What to run of a bundle: every artifact in every way that ships, at each API level, on each processor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runner.android_host.device import DEFAULT_API_LEVEL, AndroidHost, DriverProfile, Phone
from device_runner.device import Device
from device_runner.errors import UnavailableError
from device_runner.host_device import HOST_ABIS, LinuxHost, default_abi, find_processor
from device_runner.library import (
    LibraryFacts,
    archive_abis,
    archive_system,
    find_archive,
    is_archive,
    read_facts,
    resolve_all,
)
from device_runner.options import MAPPED
from device_runner.providers import NNAPI, NNAPI_API_LEVEL
from device_runner.spec import RunOptions
from pipeline.campaign.options import options_name
from pipeline.core.abis import abis_of_target
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.release.manifest import Content, Shipped

NEWEST_LEVEL = DEFAULT_API_LEVEL
"""The newest API level at which NNAPI behaves otherwise than below: from it on its runtime tells its own level."""
ANDROID = "android"
NO_LEVEL = 0
"""The API level of a trial on another system than Android."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOrder:
    """What to run a bundle with.

    `library` is an AAR, a JAR, a libonnxruntime.so or a release; `targets` are names, () for all of its system;
    `api_levels` () are each target's lowest and the newest. `driver` is what NNAPI is on the phone that is played.
    `abis` () are this computer's own for a first look and those that the targets ship, `cpus` () the ABI's usual ones
    where it is emulated. An emulator has ten times the time limit.
    """

    library: str
    targets: tuple[str, ...] = ()
    api_levels: tuple[int, ...] = ()
    driver: DriverProfile | None = None
    abis: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    timeout_seconds: float = 60.0

    def phone(self, level: int, cpu: str = "", calls: Path | None = None) -> Phone:
        """The phone that is played at an API level; `calls` is a file for the record of NNAPI calls."""
        return Phone(api_level=level, driver=self.driver, calls=calls, cpu=cpu)


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

    @property
    def asks_nnapi(self) -> bool:
        """Whether NNAPI is what runs it."""
        return self.options.provider == NNAPI


def wanted_targets(content: Content, order: ProofOrder, system: str = ANDROID) -> tuple[list[Shipped], list[str]]:
    """What of a bundle a library for `system` is for, and the names of the targets that are another platform's.

    Where nothing is for that system, it is Android's targets that the library is refused for.

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
    platform = system if any(shipped.platform == system for shipped in asked) else ANDROID
    wanted = [shipped for shipped in asked if shipped.platform == platform]
    if not wanted:
        named = ", ".join(f"{shipped.target} ({shipped.platform})" for shipped in asked)
        raise ConfigError(
            f"there is nothing to prove in a library for {system}",
            why=f"of the bundle's targets these were asked for: {named or 'none'}",
            remedy="give a library of that platform, or prove it on a device (`ort-mobile run --device ...`)",
        )
    return wanted, list(dict.fromkeys(shipped.target for shipped in asked if shipped.platform != platform))


def trials_of(wanted: list[Shipped], order: ProofOrder) -> list[ProofTrial]:
    """Every run, the lowest API level first; what several targets have in common is run once."""
    trials: dict[bytes, ProofTrial] = {}
    for shipped in wanted:
        for trial in _trials(shipped, order):
            key = msgspec.json.encode((shipped.file, trial.options, trial.api_level), order="sorted")
            known = trials.get(key, trial)
            targets = tuple(dict.fromkeys((*known.targets, shipped.target)))
            trials[key] = replace(known, targets=targets, chosen=known.chosen or trial.chosen)
    return sorted(trials.values(), key=lambda trial: trial.api_level)


def _trials(shipped: Shipped, order: ProofOrder) -> Iterator[ProofTrial]:
    levels = order.api_levels or levels_of(shipped)
    for level in levels if shipped.platform == ANDROID else (NO_LEVEL,):
        for number, options in enumerate(shipped.runs):
            yield ProofTrial(
                shipped=shipped, options=options, api_level=level, targets=(shipped.target,), chosen=number == 0
            )


def levels_of(shipped: Shipped) -> tuple[int, ...]:
    """The lowest API level of a target (NNAPI's first where the config names none), and the newest."""
    lowest = shipped.min_api_level or NNAPI_API_LEVEL
    return tuple(dict.fromkeys((lowest, max(lowest, NEWEST_LEVEL))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlace:
    """An ABI and a CPU ("": this computer's own) to run in, and what is run there.

    `deciding` are the targets that what happens there decides on; for the others it is a first look.
    """

    abi: str
    cpu: str
    wanted: tuple[Shipped, ...]
    deciding: frozenset[str]


def places_of(wanted: list[Shipped], order: ProofOrder) -> tuple[list[ProofPlace], list[str]]:
    """Where the library of an order runs, and in words which ABIs of targets do not run here, and why.

    Without `order.abis` this computer's own is run first, where the library has it, then each of the targets' ABIs.
    Raises UnavailableError for an ABI that is asked for and cannot run here, or when no ABI of the library can;
    SpecError for a CPU that does not exist.
    """
    targets = {shipped.target: abis_of_target(shipped.platform, shipped.abis) for shipped in wanted}
    if order.abis:
        return [place for abi in order.abis for place in _places(abi, wanted, frozenset(targets), order)], []
    there, here = library_abis(order.library), default_abi()
    places: list[ProofPlace] = []
    problems: list[UnavailableError] = []
    notes: list[str] = []
    for abi in dict.fromkeys(abi for abis in targets.values() for abi in abis):
        deciding = frozenset(target for target, abis in targets.items() if abi in abis)
        try:
            if abi in there:
                places += _places(abi, [trial for trial in wanted if trial.target in deciding], deciding, order)
            else:
                notes.append(
                    f"{abi} was not run: the library has {', '.join(there) or 'no ABI'}; build it for {abi} too"
                )
        except UnavailableError as error:
            problems.append(error)
            notes.append(f"{abi} was not run: {error.reason}; {error.remedy}")
    rest = frozenset(targets).difference(*(place.deciding for place in places))
    if rest and problems and (order.cpus or here not in there):
        raise problems[0]
    if rest:
        notes.append(f"{', '.join(sorted(rest))}: {here} was run instead of its ABIs")
    if (here not in there or order.cpus) and not rest:
        return places, notes
    looks = _places(here, wanted, rest.union(*(place.deciding for place in places if place.abi == here)), order)
    if not looks[0].deciding:
        notes.append(f"{here} was run as a first look: no target ships it, and what fails there is a warning")
    return [*looks, *(place for place in places if place.abi != here)], notes


def library_abis(text: str) -> list[str]:
    """The ABIs that a library's archive or its fetched wheels have; a .so has one."""
    archive = find_archive(text)
    return archive_abis(archive) if is_archive(archive) else [library.abi for library in resolve_all(text)]


def library_system(text: str) -> str:
    """The system that a library is for, android or linux; archives are not unpacked for it."""
    archive = find_archive(text)
    return archive_system(archive) if is_archive(archive) else read_facts(archive).system


def _places(abi: str, wanted: Sequence[Shipped], deciding: frozenset[str], order: ProofOrder) -> list[ProofPlace]:
    """With CPUs that are asked for, where the ABI has some or is the only one."""
    usual = HOST_ABIS[abi].usual if find_processor(abi).emulated else ("",)
    chosen = order.cpus if len(order.abis) == 1 or HOST_ABIS[abi].cpus else ()
    return [
        ProofPlace(abi=abi, cpu=find_processor(abi, cpu).cpu, wanted=tuple(wanted), deciding=deciding)
        for cpu in chosen or usual
    ]


def opened(library: LibraryFacts, phone: Phone) -> Device:
    """What runs a library: a phone for Android's, a computer with the same CPU for Linux's."""
    if library.system == ANDROID:
        return AndroidHost("android-host", library, phone)
    return LinuxHost("linux-host", library, phone.cpu)


def loaded(shipped: Shipped, options: RunOptions) -> RunOptions:
    """Options that load the file as it was loaded when it was measured."""
    loading = MAPPED if shipped.loading == "mapped" else {}
    return msgspec.structs.replace(options, session_config={**loading, **options.session_config})
