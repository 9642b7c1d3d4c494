"""Which Android library there is to save provider-aware files."""

import logging
from collections.abc import Iterator, Sequence

from device_runner.android_host.build import build_host
from device_runner.errors import RunnerError
from device_runner.host_device import default_abi, find_processor
from device_runner.library import Library, LibraryFacts, resolve
from pipeline.convert.request import AwareSource
from pipeline.core.abis import ARM64
from pipeline.core.errors import ConfigError
from pipeline.core.providers import NNAPI
from pipeline.core.releases import installed_release
from pipeline.library.fetch import known_libraries
from pipeline.partition.reference import check_asked

AUTO = "auto"
NONE = "none"
INSTALLED = "installed"

log = logging.getLogger(__name__)


def only_nnapi() -> ConfigError:
    """The error of a library that is named for other providers than NNAPI alone, or with --safe."""
    return ConfigError(
        "a reference library makes models aware of NNAPI alone",
        why="it decides by itself what is claimed, and Android's libraries have no CoreML",
        remedy="give --ep nnapi without --safe, or leave --reference out",
    )


def choose_reference(
    text: str, release: str, ships: Sequence[str] = (), providers: Sequence[str] = (NNAPI,), abi: str = ""
) -> AwareSource | None:
    """Who saves aware files for a release ("" for the installed one) and an ABI; None: our claims are kept.

    `text` is auto, none, installed or a library; `ships` are libraries that a config names, which auto asks first.
    Without an ABI a named library is the one that needs no emulator here. auto asks one of the ABI alone: our rules
    know what differs by ABI, and a library for another does not.
    Raises MissingError and SpecError for a library that is named and cannot be had or run here, ConfigError for one
    that is named for other providers than NNAPI, before it is looked for; auto never raises.
    """
    if text == NONE:
        return None
    if text == INSTALLED:
        return AwareSource()
    if text != AUTO:
        if tuple(providers) != (NNAPI,):
            raise only_nnapi()
        build_host(find_processor(abi or default_abi()))
        facts = resolve(text, abi or default_abi()).android()
        check_asked(facts, NNAPI)
        return _of(facts, optional=False)
    facts_at_hand = _at_hand(release, ships, abi or ARM64)
    return _of(facts_at_hand, optional=True) if facts_at_hand else AwareSource(optional=True)


def library_of(reference: AwareSource) -> LibraryFacts:
    """The library of a source that has one, for its ABI; raises as `resolve`."""
    return resolve(reference.library, reference.abi).android()


def _of(facts: LibraryFacts, *, optional: bool) -> AwareSource:
    return AwareSource(library=facts.path, abi=facts.abi, release=facts.release, sha256=facts.sha256, optional=optional)


def _at_hand(release: str, ships: Sequence[str], abi: str) -> LibraryFacts | None:
    """The first library of a release that runs here: one that ships, else the newest patch release in a cache."""
    wanted = release or str(installed_release())
    try:
        for library in _found([*ships, *_cached(wanted)], abi):
            if f"{library.release}.".startswith(f"{wanted}.") or (not release and library.text in ships):
                build_host(find_processor(abi))
                return library.facts
    except RunnerError as error:
        log.info("provider-aware files are saved with our claims: %s", error)
    return None


def _found(names: Sequence[str], abi: str) -> Iterator[Library]:
    for name in names:
        try:
            library = resolve(name, abi)
            check_asked(library.android(), NNAPI)
            yield library
        except RunnerError as error:
            log.info("not asked: %s", error)


def _cached(wanted: str) -> list[str]:
    """Names of Android releases available that a release X.Y or X.Y.Z means, the newest first."""
    names = [known.name for known in known_libraries() if known.at_hand and known.name.startswith("android:")]
    fitting = [name for name in names if f"{name.partition(':')[2]}.".startswith(f"{wanted}.")]
    return sorted(fitting, key=_parts, reverse=True)


def _parts(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.partition(":")[2].split(".") if part.isdigit())
