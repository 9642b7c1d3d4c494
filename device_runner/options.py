"""Which run options are legal: on any device, and on one with these facts. Pure functions, each no with its reason."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from device_runner.device import DeviceFacts
from device_runner.providers import (
    CPU,
    NNAPI,
    NNAPI_DEVICES_API_LEVEL,
    PROVIDERS,
    ExecutionProvider,
    provider_named,
)
from device_runner.result import Failure, FailureKind
from device_runner.spec import ExecutionMode, NnapiFlag, RunOptions

FALLBACK_KEY = "session.disable_cpu_ep_fallback"
AFFINITY_KEY = "session.intra_op_thread_affinities"
BLOCK_KEY = "session.dynamic_block_base"
BYTES_KEY = "session.use_ort_model_bytes_directly"

MAPPED = {BYTES_KEY: "1", "session.use_ort_model_bytes_for_initializers": "1"}
"""Session config entries with which a session reads a model, and its weights, where they lie in memory.

With the first one the probe maps an ORT format file and creates the session from these bytes, as apps do with an asset;
ONNX Runtime itself ignores it for a path.
"""

AFFINITIES = re.compile(r"{0}(;{0})*".format(r"(\d+(,\d+)*|\d+-\d+)"))


@dataclass(frozen=True, slots=True)
class OptionRule:
    """What is not possible, why, and what to do."""

    broken: Callable[[RunOptions], bool]
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """As `OptionRule`, for options on a device."""

    broken: Callable[[RunOptions, DeviceFacts], bool]
    reason: str
    remedy: str


def _both(options: RunOptions) -> bool:
    return {NnapiFlag.CPU_ONLY, NnapiFlag.CPU_DISABLED} <= set(options.flags)


def _wrong_affinities(options: RunOptions) -> bool:
    """One group less than threads: the calling thread is the first and stays where it is (facts of 1.14 and later)."""
    text = options.session_config.get(AFFINITY_KEY)
    return text is not None and len(text.split(";")) != options.intra_op_threads - 1


def _unreadable_affinities(options: RunOptions) -> bool:
    """What ONNX Runtime's own parser refuses: anything but `1,2;3-4`, numbers from 1."""
    text = options.session_config.get(AFFINITY_KEY)
    return text is not None and (not AFFINITIES.fullmatch(text) or 0 in _cores(text))


def _cores(affinities: str | None) -> set[int]:
    return {int(number) for number in re.findall(r"\d{1,9}", affinities or "")}


def _bad_block_base(options: RunOptions) -> bool:
    """Words make the session fail, negative numbers are taken and do nothing (1.31.1, measured)."""
    text = options.session_config.get(BLOCK_KEY)
    return text is not None and not re.fullmatch(r"0*[1-9]\d{0,8}", text)


RULES = (
    OptionRule(
        _both,
        "CPU_DISABLED and CPU_ONLY contradict each other: NNAPI refuses the session",
        "give one of the two flags",
    ),
    OptionRule(
        lambda o: bool(o.flags) and not provider_named(o.provider).has_flags,
        "flags are NNAPI's; this provider takes provider_options",
        "remove the flags, or ask for nnapi",
    ),
    OptionRule(
        lambda o: bool(o.provider_options) and not provider_named(o.provider).has_options,
        "this provider has no options of its own",
        "remove provider_options; NNAPI has flags, the CPU has threads and session_config",
    ),
    OptionRule(
        lambda o: o.provider == CPU and o.session_config.get(FALLBACK_KEY) == "1",
        f"{FALLBACK_KEY} forbids the CPU, which is what was asked for",
        "remove the key, or ask for an accelerator",
    ),
    OptionRule(
        lambda o: o.inter_op_threads > 1 and o.execution_mode is not ExecutionMode.PARALLEL,
        "inter-op threads are used in parallel execution mode only",
        "set execution_mode to parallel, or leave inter_op_threads at 0",
    ),
    OptionRule(
        _unreadable_affinities,
        f"{AFFINITY_KEY} cannot be read",
        "write cores from 1 on: `,` or `-` between those of a thread, `;` between threads, as in 2;3-4",
    ),
    OptionRule(
        _wrong_affinities,
        f"{AFFINITY_KEY} needs one group fewer than intra_op_threads",
        "set intra_op_threads, and give that many groups less one, with ; between",
    ),
    OptionRule(
        _bad_block_base,
        f"{BLOCK_KEY} takes a whole number above 0",
        "write 4, as ONNX Runtime's documentation advises, or leave it out",
    ),
    OptionRule(
        lambda o: any(not key or len(key) > 1024 for key in o.session_config),
        "a session config key is empty or longer than 1024 characters",
        "check session_config",
    ),
)
"""Of the options alone; sources: ONNX Runtime 1.21 to 1.31, measured or read."""


def _below(facts: DeviceFacts, level: int) -> bool:
    return facts.platform == "android" and 0 < facts.api_level < level


def _flag_too_new(flag: NnapiFlag) -> Callable[[RunOptions, DeviceFacts], bool]:
    return lambda options, facts: flag in options.flags and _below(facts, NNAPI_DEVICES_API_LEVEL)


def _bounds(provider: ExecutionProvider) -> Iterator[DeviceRule]:
    """Where a provider is not available, by its row of the registry."""
    if home := provider.home:
        yield DeviceRule(
            lambda o, d: o.provider == provider.name and d.platform in home.never_on,
            f"{provider.title} is {home.owner}'s: {home.instead}",
            home.remedy,
        )
    if lowest := provider.min_api_level:
        yield DeviceRule(
            lambda o, d: o.provider == provider.name and _below(d, lowest),
            f"API {{api_level}}: {provider.title} needs {lowest}",
            f"use a device with API level {lowest} or higher, or leave {provider.name} out",
        )


DEVICE_RULES: tuple[DeviceRule, ...] = (
    *(rule for provider in PROVIDERS.values() for rule in _bounds(provider)),
    DeviceRule(
        lambda o, d: o.provider == NNAPI and d.nnapi is False,
        "this device has no NNAPI",
        "use another device, or leave nnapi out",
    ),
    DeviceRule(
        _flag_too_new(NnapiFlag.USE_NCHW),
        "API {api_level}: USE_NCHW needs 29",
        "leave the flag out on this device",
    ),
    DeviceRule(
        lambda o, d: (
            bool(d.core_max_mhz) and max(_cores(o.session_config.get(AFFINITY_KEY)), default=0) > len(d.core_max_mhz)
        ),
        "this device has {cores} cores, and affinities name one beyond: ONNX Runtime would not say so",
        "name cores from 1 to {cores}",
    ),
    DeviceRule(
        _flag_too_new(NnapiFlag.CPU_DISABLED),
        "API {api_level}: CPU_DISABLED needs 29, and is ignored below",
        "leave the flag out on this device",
    ),
)
"""Of options on a device, as far as its facts tell; what a library has in it, the library says at the run."""


def illegal(options: RunOptions) -> Failure | None:
    """Why these options make no sense anywhere; None when they do."""
    for rule in RULES:
        if rule.broken(options):
            return Failure(
                kind=FailureKind.BAD_OPTIONS, message=rule.reason, cause="the options contradict", remedy=rule.remedy
            )
    return None


def impossible_here(options: RunOptions, facts: DeviceFacts) -> Failure | None:
    """Why these options cannot run on this device (`wrong_device`) or anywhere (`bad_options`); None when they can."""
    for rule in DEVICE_RULES:
        if rule.broken(options, facts):
            words = {"platform": facts.platform, "api_level": facts.api_level, "cores": len(facts.core_max_mhz)}
            return Failure(
                kind=FailureKind.WRONG_DEVICE,
                message=rule.reason.format_map(words),
                cause=facts.name,
                remedy=rule.remedy.format_map(words),
            )
    return illegal(options)


def subsets(flags: Iterable[NnapiFlag] = tuple(NnapiFlag)) -> Iterator[tuple[NnapiFlag, ...]]:
    """Every set of flags, smallest first, in the enum's order within."""
    known = list(flags)
    chosen = product((False, True), repeat=len(known))
    sets = [tuple(flag for flag, on in zip(known, row, strict=True) if on) for row in chosen]
    yield from sorted(sets, key=lambda flags: (len(flags), [known.index(flag) for flag in flags]))
