"""What decides which nodes a provider takes of an EP-aware file: rules, the installed ONNX Runtime, or a library."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from device_runner import host_device
from device_runner import library as ort_library
from device_runner.android_host import build as android_host_build
from device_runner.errors import RunnerError
from pipeline.convert.request import AwareSpec
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError
from pipeline.library import fetch
from pipeline.partition import reference as partition_reference

if TYPE_CHECKING:
    pass


AUTO = "auto"


NONE = "none"


INSTALLED = "installed"


log = logging.getLogger(__name__)


def only_nnapi() -> ConfigError:
    """The error of a library that is named for other providers than NNAPI alone, or with --safe."""
    return ConfigError(
        "a reference library makes models aware of NNAPI alone",
        why="it decides by itself what is claimed, has no CoreML, and the copies of files for WebGPU are written here",
        remedy="give --ep nnapi without --safe, or leave --reference out",
    )


def choose_reference(
    text: str,
    release: str,
    ships: Sequence[str] = (),
    providers: Sequence[str] = (provider_rules.NNAPI,),
    abi: str = "",
) -> AwareSpec:
    """Who says what is claimed, and saves aware files, for a release ("" for the installed one) and an ABI.

    Way.INSTALLED: for NNAPI the installed onnxruntime's own claims, where it has that provider, else our rules
    (`AwareSpec.way`).

    `text` is auto, none, installed or a library; `ships` are libraries that a config names, which auto asks first.
    Without an ABI a named library is the one that needs no emulator here. auto asks one of the ABI alone: our rules
    know what differs by ABI, and a library for another does not.
    Raises MissingError and SpecError for a library that is named and cannot be had or run here, ConfigError for one
    that is named for other providers than NNAPI, before it is looked for; auto never raises.
    """
    if text == NONE:
        return AwareSpec()
    if text == INSTALLED:
        return AwareSpec(by=core_variant.AwareBy(way=core_variant.Way.INSTALLED))
    if text != AUTO:
        if len(providers) != 1 or not provider_rules.PROVIDER_RULES[providers[0]].run.nnapi:
            raise only_nnapi()
        android_host_build.build_host(host_device.find_processor(abi or host_device.default_abi()))
        facts = ort_library.resolve(text, abi or host_device.default_abi()).android()
        partition_reference.check_asked(facts, provider_rules.NNAPI)
        return _of(facts, optional=False)
    abi, prefix = abi or core_abis.ARM64, release or str(ort_releases.installed_release())
    try:
        # One that ships, else the newest patch release in a cache
        for name in [*ships, *_cached(prefix)]:
            try:
                library = ort_library.resolve(name, abi)
                partition_reference.check_asked(library.android(), provider_rules.NNAPI)
            except RunnerError as error:
                log.info("not asked: %s", error)
                continue
            if f"{library.release}.".startswith(f"{prefix}.") or (not release and library.text in ships):
                android_host_build.build_host(host_device.find_processor(abi))
                return _of(library.facts, optional=True)
    except RunnerError as error:
        log.warning("provider-aware files are saved with our claims: %s; %s", error, error.remedy)
    return AwareSpec(by=core_variant.AwareBy(way=core_variant.Way.INSTALLED), optional=True)


def library_of(aware: AwareSpec) -> ort_library.LibraryFacts:
    """The Android library of what is asked, where it has one, for its ABI; raises as `resolve`."""
    return ort_library.resolve(aware.library, aware.by.abi or core_abis.X86_64).android()


def _of(facts: ort_library.LibraryFacts, *, optional: bool) -> AwareSpec:
    abi = "" if facts.abi == core_abis.X86_64 else facts.abi
    by = core_variant.AwareBy(way=core_variant.Way.LIBRARY, release=facts.release, sha256=facts.sha256, abi=abi)
    return AwareSpec(by=by, library=facts.path, optional=optional)


def _cached(release: str) -> list[str]:
    """Names of Android releases available that a release X.Y or X.Y.Z means, the newest first."""
    names = [
        library.name for library in fetch.known_libraries() if library.at_hand and library.name.startswith("android:")
    ]
    versions = [name.partition(":")[2] for name in names]
    fitting = [version for version in versions if f"{version}.".startswith(f"{release}.")]
    fitting.sort(key=lambda version: [int(part) for part in version.split(".") if part.isdigit()], reverse=True)
    return [f"android:{version}" for version in fitting]
