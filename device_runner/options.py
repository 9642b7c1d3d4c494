"""Which run options are legal on any device and on one with these facts, and which are to blame for a failure."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.files import replacing, taking_turns
from device_runner.providers import (
    NNAPI_DEVICES_API_LEVEL,
    NNAPI_RELAXED_API_LEVEL,
    PROVIDERS,
    accepted_values,
    provider_named,
)
from device_runner.result import Failure, FailureKind
from device_runner.spec import Allocator, ExecutionMode, NnapiFlag, RunOptions
from device_runner.untrusted_files import decode_json, read_regular

FALLBACK_KEY = "session.disable_cpu_ep_fallback"
AFFINITY_KEY = "session.intra_op_thread_affinities"
BLOCK_KEY = "session.dynamic_block_base"
SPINNING_KEYS = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
PREPACKING_KEY = "session.disable_prepacking"
BYTES_KEY = "session.use_ort_model_bytes_directly"
INITIALIZERS_KEY = "session.use_ort_model_bytes_for_initializers"

MAPPED = {BYTES_KEY: "1", INITIALIZERS_KEY: "1"}
"""Session config entries with which a session reads a model, and its weights, where they lie in memory.

With the first one the probe maps an ORT format file and creates the session from these bytes, as apps do with an asset;
ONNX Runtime itself ignores it for a path.
"""

AFFINITIES = re.compile(r"{0}(;{0})*".format(r"(\d+(,\d+)*|\d+-\d+)"))
CORES = re.compile(r"big|{0}(,{0})*".format(r"[1-9]\d?(-[1-9]\d?)?"))


class OptionRule(NamedTuple):
    """What is not possible: whether options (in `DEVICE_RULES` with a device's facts) break it, and what is said."""

    broken: Callable[..., bool]
    what: str
    remedy: str


def first_broken(
    rules: Iterable[OptionRule],
    *subject: object,
    why: str,
    code: FailureKind = FailureKind.BAD_OPTIONS,
    words: Mapping[str, object] = {},
) -> Failure | None:
    """The failure by the first rule that something breaks, `words` in its texts; None where all hold."""
    for rule in rules:
        if rule.broken(*subject):
            what, remedy = rule.what.format_map(words), rule.remedy.format_map(words)
            return Failure(code=code, what=what, why=why, remedy=remedy)
    return None


def _cores(options: RunOptions) -> set[int]:
    texts = options.session_config.get(AFFINITY_KEY, ""), options.thread_cores
    return {int(number) for text in texts for number in re.findall(r"\d{1,9}", text)}


RULES: tuple[OptionRule, ...] = (
    OptionRule(
        lambda o: {NnapiFlag.CPU_ONLY, NnapiFlag.CPU_DISABLED} <= set(o.flags),
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
        lambda o: o.on_cpu and o.session_config.get(FALLBACK_KEY) == "1",
        f"{FALLBACK_KEY} forbids the CPU, which is what was asked for",
        "remove the key, or ask for an accelerator",
    ),
    OptionRule(
        lambda o: o.inter_op_threads > 1 and o.execution_mode is not ExecutionMode.PARALLEL,
        "inter-op threads are used in parallel execution mode only",
        "set execution_mode to parallel, or leave inter_op_threads at 0",
    ),
    OptionRule(
        # What ONNX Runtime's own parser refuses: anything but `1,2;3-4`, numbers from 1.
        lambda o: (
            (text := o.session_config.get(AFFINITY_KEY)) is not None
            and (not AFFINITIES.fullmatch(text) or 0 in _cores(o))
        ),
        f"{AFFINITY_KEY} cannot be read",
        "write cores from 1 on: `,` or `-` between those of a thread, `;` between threads, as in 2;3-4",
    ),
    OptionRule(
        # One group less than threads: the calling thread is the first and stays where it is (1.14 and later).
        lambda o: (
            (text := o.session_config.get(AFFINITY_KEY)) is not None and len(text.split(";")) != o.intra_op_threads - 1
        ),
        f"{AFFINITY_KEY} needs one group fewer than intra_op_threads",
        "set intra_op_threads, and give that many groups less one, with ; between",
    ),
    OptionRule(
        lambda o: (
            bool(o.thread_cores)
            and (
                not CORES.fullmatch(o.thread_cores)
                or max(_cores(o), default=0) > 64
                or any(int(low) > int(high) for low, high in re.findall(r"(\d+)-(\d+)", o.thread_cores))
            )
        ),
        "thread_cores cannot be read",
        "write big, or cores from 1 to 64 with `,` and `-`, as in 5-8",
    ),
    OptionRule(
        # The affinities are set last, by ONNX Runtime in the thread (ort_mobile 4.3).
        lambda o: bool(o.thread_cores) and AFFINITY_KEY in o.session_config,
        f"thread_cores and {AFFINITY_KEY} exclude each other",
        "leave out one of the two",
    ),
    OptionRule(
        # The same: each thread of a pool whose size it chooses gets a core.
        lambda o: bool(o.thread_cores) and o.intra_op_threads == 0 and o.execution_mode is ExecutionMode.SEQUENTIAL,
        "thread_cores need a number of threads: where ONNX Runtime chooses it, it gives each thread a core of its own",
        "set threads to 2 or more, or leave thread_cores out",
    ),
    OptionRule(
        lambda o: bool(o.thread_cores or o.thread_nice) and o.intra_op_threads == 1 and o.inter_op_threads < 2,
        "with one thread there is no pool: thread_cores and thread_nice are of its threads",
        "set threads to 2 or more, or leave both out",
    ),
    OptionRule(
        # Of a provider without a row the session says it.
        lambda o: o.device_tensors and o.provider in PROVIDERS and not provider_named(o.provider).capture,
        "device_tensors need a provider whose device has a memory of its own; this one's is the CPU's",
        "leave device_tensors out, or ask for {}".format(
            ", ".join(n for n, provider in PROVIDERS.items() if provider.capture)
        ),
    ),
    OptionRule(
        # Words make the session fail, negative numbers are taken and do nothing (1.31.1, measured).
        lambda o: not re.fullmatch(r"0*[1-9]\d{0,8}", o.session_config.get(BLOCK_KEY, "1")),
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


DEVICE_RULES: tuple[OptionRule, ...] = (
    OptionRule(
        lambda o, d: provider_named(o.provider).never_on(d.platform),
        "{row.title} is {row.owner}'s: {instead}",
        "{row.remedy}",
    ),
    OptionRule(
        lambda o, d: _below(d, provider_named(o.provider).min_api_level),
        "API {api_level}: {row.title} needs {row.min_api_level}",
        "use a device with API level {row.min_api_level} or higher, or leave {row.name} out",
    ),
    OptionRule(
        lambda o, d: provider_named(o.provider).nnapi and d.nnapi is False,
        "this device has no NNAPI",
        "use another device, or leave nnapi out",
    ),
    OptionRule(
        lambda o, d: NnapiFlag.USE_NCHW in o.flags and _below(d, NNAPI_DEVICES_API_LEVEL),
        "API {api_level}: USE_NCHW needs 29",
        "leave the flag out on this device",
    ),
    OptionRule(
        lambda o, d: bool(o.thread_cores or o.thread_nice) and d.platform not in ("", "android", "linux"),
        "this system has neither core masks nor nice values of threads",
        "leave thread_cores and thread_nice out on this device",
    ),
    OptionRule(
        lambda o, d: o.allocator is not Allocator.DEFAULT and d.platform not in ("", "linux"),
        "apps cannot replace this system's allocator under the library",
        "leave allocator out on this device",
    ),
    OptionRule(
        lambda o, d: bool(d.core_max_mhz) and max(_cores(o), default=0) > len(d.core_max_mhz),
        "this device has {cores} cores, and affinities or thread_cores name one beyond",
        "name cores from 1 to {cores}",
    ),
    OptionRule(
        lambda o, d: NnapiFlag.CPU_DISABLED in o.flags and _below(d, NNAPI_DEVICES_API_LEVEL),
        "API {api_level}: CPU_DISABLED needs 29, and is ignored below",
        "leave the flag out on this device",
    ),
    OptionRule(
        lambda o, d: NnapiFlag.CPU_ONLY in o.flags and _below(d, NNAPI_DEVICES_API_LEVEL),
        "API {api_level}: CPU_ONLY needs 29, and is ignored below",
        "leave the flag out on this device",
    ),
    OptionRule(
        lambda o, d: NnapiFlag.USE_FP16 in o.flags and _below(d, NNAPI_RELAXED_API_LEVEL),
        "API {api_level}: USE_FP16 needs 28, and is ignored below",
        "leave the flag out on this device",
    ),
)
"""Of options on a device, as far as its facts tell; what a library has in it, the library says at the run."""


def illegal(options: RunOptions) -> Failure | None:
    """Why these options make no sense anywhere; None when they do."""
    return first_broken(RULES, options, why="the options contradict") or wrong_option(options)


def wrong_option(options: RunOptions) -> Failure | None:
    """The first option that a provider lacks, or does not take so; None where all are right, or its own not known."""
    # Session config entries that begin with the provider's prefix are options of it, too
    provider = provider_named(options.provider)
    prefix = f"ep.{provider.ort_name.lower()}."
    given = {
        **{key.removeprefix(prefix): value for key, value in options.session_config.items() if key.startswith(prefix)},
        **options.provider_options,
    }
    for key, value in given.items() if provider.values else ():
        if key not in provider.values:
            close = difflib.get_close_matches(key.rpartition(".")[2], provider.values, n=1)
            return Failure(
                code=FailureKind.BAD_OPTIONS,
                what=f"{provider.title} has no option {key}" + (f": did you mean {close[0]}?" if close else ""),
                why="it ignores names that it does not know, or makes no session with them",
                remedy=f"there are {', '.join(provider.values)}",
            )
        if not re.fullmatch(provider.values[key], value):
            shown = accepted_values(provider.values[key])
            return Failure(
                code=FailureKind.BAD_OPTIONS,
                what=f"{key} of {provider.title} does not take {value!r}: it takes {shown}",
                why="it makes no session with it, or takes its default without a word",
                remedy="write one of its values as it stands there",
            )
    return None


def impossible_here(options: RunOptions, facts: DeviceFacts) -> Failure | None:
    """Why these options cannot run on this device (`wrong_device`) or anywhere (`bad_options`); None when they can."""
    provider = provider_named(options.provider)
    words = {
        "platform": facts.platform,
        "api_level": facts.api_level,
        "cores": len(facts.core_max_mhz),
        "row": provider,
        "instead": provider.instead.format(platform=facts.platform),
    }
    kind = FailureKind.WRONG_DEVICE
    return first_broken(DEVICE_RULES, options, facts, why=facts.name, code=kind, words=words) or illegal(options)


def subsets() -> Iterator[tuple[NnapiFlag, ...]]:
    """Every set of flags, smallest first, in the enum's order within."""
    return chain.from_iterable(combinations(NnapiFlag, size) for size in range(len(NnapiFlag) + 1))


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
    cache: dict[str, bool] = {}

    smaller = options
    while True:
        for part in parts(smaller):
            candidate = without(smaller, part)
            key = msgspec.json.encode(candidate).decode()
            if key not in cache:
                cache[key] = fails(candidate)
            if cache[key]:
                smaller = candidate
                break
        else:
            return smaller


class DeviceClass(Struct, frozen=True, kw_only=True):
    """Devices that fail alike: the same chip (or model, where it does not tell) at the same API level.

    For what a GPU runs it is the GPU with its driver, too: `gpu` is "" for what does not depend on it.
    """

    chip: str
    api_level: int
    gpu: str = ""


def class_of(facts: DeviceFacts) -> DeviceClass:
    """The class of a device."""
    return DeviceClass(chip=facts.soc or facts.model, api_level=facts.api_level)


def class_for(facts: DeviceFacts, options: RunOptions) -> DeviceClass:
    """The class of a device in which options fail alike."""
    gpu = facts.gpu if provider_named(options.provider).gpu else None
    return replace(class_of(facts), gpu=f"{gpu.name}, driver {gpu.driver}" if gpu else "")


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


def _values(options: RunOptions) -> set[tuple[str, str, str]]:
    """The parts with their values."""
    values = set()
    for name, key in parts(options):
        field = getattr(options, name)
        values.add((name, key, str(field[key]) if isinstance(field, dict) else "" if key else str(field)))
    return values


def denial(
    facts: DeviceFacts, options: RunOptions, entries: Iterable[Denied], model_sha256: str = ""
) -> Failure | None:
    """Why these options are not to be tried on that device: an entry all of whose parts they have. None to go on."""
    values = _values(options)
    for entry in entries:
        same = (
            entry.devices in (class_of(facts), class_for(facts, options)) and entry.options.provider == options.provider
        )
        meant = entry.model_sha256 in (None, model_sha256)
        if same and meant and _values(entry.options) <= values:
            gpu = f", {entry.devices.gpu}" if entry.devices.gpu else ""
            return Failure(
                code=FailureKind.DENIED,
                what=f"{entry.kind.value} on {entry.devices.chip}, API level {entry.devices.api_level}{gpu},"
                f" with ONNX Runtime {entry.ort_version} on {entry.seen_at[:10]}: {entry.message}",
                why="these options are known to fail on such devices",
                remedy="remove the entry from the deny list to try again",
            )
    return None


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
    with taking_turns(path.with_name(path.name + ".lock")):
        subject = (entry.devices, entry.options, entry.model_sha256)
        others = (
            denied for denied in read_denied(path) if (denied.devices, denied.options, denied.model_sha256) != subject
        )
        entries = [*others, entry]
        with replacing(path) as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")
    return entries
