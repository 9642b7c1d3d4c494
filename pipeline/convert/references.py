"""Whose own session saves provider-aware files: the Android library that ships, where it is available and can run here.

Nothing is fetched for it: `ort-mobile library get` does that on request.
"""

import logging
from collections.abc import Iterator, Sequence

from device_runner.android_host.build import build_host, check_host
from device_runner.errors import RunnerError
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import find_library
from pipeline.convert.by_library import only_nnapi
from pipeline.convert.splice.spec import AwareSource
from pipeline.core.releases import installed_release
from pipeline.library.fetch import known_libraries
from pipeline.partition.answer import Provider
from pipeline.partition.reference.ask import check_asked

AUTO = "auto"
NONE = "none"
INSTALLED = "installed"

log = logging.getLogger(__name__)


def choose_reference(
    text: str, release: str, ships: Sequence[str] = (), providers: Sequence[str] = (Provider.NNAPI,)
) -> AwareSource | None:
    """Who saves aware files for a release ("" for the installed one); None: they are spliced.

    `text` is auto, none, installed or a library; `ships` are libraries that a config names, which auto asks first.
    Raises MissingError and SpecError for a library that is named and cannot be had or run here, ConfigError for one
    that is named for other providers than NNAPI, before it is looked for; auto never raises.
    """
    if text == NONE:
        return None
    if text == INSTALLED:
        return AwareSource()
    if text != AUTO:
        if tuple(providers) != (Provider.NNAPI,):
            raise only_nnapi()
        check_host()
        facts = find_library(text)
        check_asked(facts, Provider.NNAPI)
        return _of(facts, optional=False)
    found = _at_hand(release, ships)
    return _of(found, optional=True) if found else AwareSource(optional=True)


def _of(facts: LibraryFacts, *, optional: bool) -> AwareSource:
    return AwareSource(library=facts.path, release=facts.release, sha256=facts.sha256, optional=optional)


def _at_hand(release: str, ships: Sequence[str]) -> LibraryFacts | None:
    """The first library of a release that runs here: one that ships, else the newest patch release in a cache."""
    wanted = release or str(installed_release())
    try:
        check_host()
        for facts in _found([*ships, *_cached(wanted)]):
            if f"{facts.release}.".startswith(f"{wanted}.") or (not release and facts.path in ships):
                build_host()
                return facts
    except RunnerError as error:
        log.info("provider-aware files are spliced: %s", error)
    return None


def _found(names: Sequence[str]) -> Iterator[LibraryFacts]:
    for name in names:
        try:
            facts = find_library(name)
            check_asked(facts, Provider.NNAPI)
            yield facts
        except RunnerError as error:
            log.info("not asked: %s", error)


def _cached(wanted: str) -> list[str]:
    """Names of Android releases available that a release X.Y or X.Y.Z means, the newest first."""
    names = [known.name for known in known_libraries() if known.at_hand and known.name.startswith("android:")]
    fitting = [name for name in names if f"{name.partition(':')[2]}.".startswith(f"{wanted}.")]
    return sorted(fitting, key=_parts, reverse=True)


def _parts(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.partition(":")[2].split(".") if part.isdigit())
