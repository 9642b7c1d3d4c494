"""From a config's `[[runs]]` and artifacts to named runs that are legal, and a reason for each that is not.

Options that crash are kept for all devices of that class and not tried again: reduced to the smallest that do. What a
run was measured of, with and on stands here, too, as texts by name, and what changed between two.
"""

import dataclasses
import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.files import state_folder
from device_runner.options import (
    AFFINITY_KEY,
    BLOCK_KEY,
    BYTES_KEY,
    FALLBACK_KEY,
    MAPPED,
    Denied,
    add_denied,
    class_for,
    denial,
    impossible_here,
    parts,
    read_denied,
    smallest_failing,
    subsets,
    wrong_option,
)
from device_runner.providers import chip_of_phone, provider_named
from device_runner.result import Failure, FailureKind, RunResult, utc_now
from device_runner.spec import (
    OUTPUTS_LIMIT_BYTES,
    Allocator,
    ExecutionMode,
    NnapiFlag,
    OptimizationLevel,
    Plugin,
    RunOptions,
    RunSpec,
    Stream,
    TensorFile,
    tensor_bytes,
)
from pipeline.campaign.record import Host, RecordedRun, RunRecord, Skipped
from pipeline.campaign.statistics.compare import LATER_LOOKS, LOOKS, MLPERF_RUNS, MLPERF_SECONDS, DecisionRule
from pipeline.check.result import Reference
from pipeline.compat.contexts import Loading, NpuContext, built_for, loader_answer
from pipeline.config import (
    ADVISED_RUNS,
    ALL_FLAGS,
    REPLAY_KEY,
    MeasureConfig,
    MeasureMode,
    MeasureRule,
    Platform,
    RunConfig,
)
from pipeline.core import custom_ops
from pipeline.core.errors import ConfigError
from pipeline.core.providers import PROVIDER_RULES, QNN
from pipeline.core.variant import Artifact, Variant

SPINNING_KEYS = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
PREPACKING_KEY = "session.disable_prepacking"

FIELDS = {
    "provider": "provider",
    "threads": "intra_op_threads",
    "inter_op_threads": "inter_op_threads",
    "execution_mode": "execution_mode",
    "level": "optimization_level",
    "memory_arena": "cpu_arena",
    "memory_pattern": "memory_pattern",
    "thread_cores": "thread_cores",
    "thread_nice": "thread_nice",
    "allocator": "allocator",
    "device_tensors": "device_tensors",
}
"""Keys of [[runs]] and the fields of RunOptions that they are."""

ENTRIES: dict[str, Callable[[Any], dict[str, str]]] = {
    "spinning": lambda on: dict.fromkeys(SPINNING_KEYS, str(int(on))),
    "affinities": lambda text: {AFFINITY_KEY: text},
    "prepacking": lambda on: {} if on else {PREPACKING_KEY: "1"},
    "dynamic_block_base": lambda base: {BLOCK_KEY: str(base)},
    "strict": lambda on: {FALLBACK_KEY: "1"} if on else {},
}
"""Keys of [[runs]] and the session config entries that a value of theirs means (onnxruntime's own keys, 1.21 to 1.31).

Spinning is always said: builds differ in their default. The others' defaults are the same everywhere.
"""

MOST_RUNS = 2048
"""Combinations of one table: what is more is a mistake, or takes days."""


def run_options(run: RunConfig) -> list[RunOptions]:
    """Every combination of the values of a [[runs]] table, legal or not, the last key's values next to each other.

    Raises ConfigError for a flag that NNAPI does not have, a setting that is made twice, and far too many of them.
    """
    settings = {key: getattr(run, key) for key in (*FIELDS, *ENTRIES)}
    settings |= {f"options.{key}": value for key, value in run.options.items()}
    settings |= {f"session_config.{key}": value for key, value in run.session_config.items()}
    axes = {key: value if isinstance(value, tuple) else (value,) for key, value in settings.items()}
    # Flags: one set for a list of names, one for each list in a list of lists, every set for the word `all`.
    named = (run.flags,) if isinstance(run.flags, str) else run.flags
    lists = [value for value in named if isinstance(value, tuple)]
    flags = tuple(value for value in named if isinstance(value, str))
    if lists and flags:
        raise ConfigError(
            "flags are a list of names or a list of lists, not both",
            where="[[runs]] flags",
            remedy='write [["USE_FP16"], ["USE_FP16", "USE_NCHW"]] for two sets, and [] in it for none',
        )
    axes["flags"] = tuple(subsets()) if run.flags == ALL_FLAGS else tuple(map(_flag_set, lists or [flags]))
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_RUNS:
        sizes = ", ".join(f"{key} {len(values)}" for key, values in axes.items() if len(values) > 1)
        raise ConfigError(
            f"one [[runs]] asks for {count} combinations",
            where=f"[[runs]] {sizes}",
            why=f"at most {MOST_RUNS} can be meant",
            remedy="write several [[runs]] with shorter lists",
        )
    for key, meant in ENTRIES.items():
        values = [value for value in axes[key] if value is not None]
        if twice := {name for value in values for name in meant(value)} & set(run.session_config):
            raise ConfigError(
                f"`{key}` and session_config both set {', '.join(sorted(twice))}",
                where="[[runs]]",
                remedy="leave out one of the two",
            )
    combinations = []
    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        config = {key.partition(".")[2]: value for key, value in chosen.items() if key.startswith("session_config.")}
        for key, meant in ENTRIES.items():
            config |= {} if chosen[key] is None else meant(chosen[key])
        combinations.append(
            RunOptions(
                provider_options={key.partition(".")[2]: v for key, v in chosen.items() if key.startswith("options.")},
                flags=chosen["flags"],
                session_config=config,
                **{field: chosen[key] for key, field in FIELDS.items()},
            )
        )
    return combinations


def _flag_set(names: Iterable[str]) -> tuple[NnapiFlag, ...]:
    """The flags once each, in NNAPI's order."""
    chosen = {name.removeprefix("NNAPI_FLAG_"): name for name in names}
    for name, text in chosen.items():
        if name not in set(NnapiFlag):
            remedy = f"it takes: {', '.join(NnapiFlag)}, or `all`"
            raise ConfigError(f"unknown NNAPI flag {text!r}", where="[[runs]] flags", remedy=remedy)
    return tuple(flag for flag in NnapiFlag if flag.value in chosen)


def check_runs(runs: Iterable[RunConfig]) -> None:
    """Raise ConfigError for a table that `run_options` refuses, or with an option that its provider does not have."""
    for failure in (wrong_option(options) for run in runs for options in run_options(run)):
        if failure:
            raise ConfigError(failure.message, where="[[runs]] options", why=failure.cause, remedy=failure.remedy)


def changed(options: RunOptions, settings: Mapping[str, Any]) -> RunOptions:
    """Run options with other values for keys of [[runs]]; `options` and `session_config` are added to those there."""
    fields = {FIELDS[key]: value for key, value in settings.items() if key in FIELDS}
    config = {**options.session_config, **settings.get("session_config", {})}
    for key, meant in ENTRIES.items():
        config |= meant(settings[key]) if key in settings else {}
    flags = _flag_set(settings["flags"]) if "flags" in settings else options.flags
    provider_options = {**options.provider_options, **settings.get("options", {})}
    return msgspec.structs.replace(
        options, session_config=config, flags=flags, provider_options=provider_options, **fields
    )


SHORT: dict[str, dict[str, str]] = {
    "spinning=off": dict.fromkeys(SPINNING_KEYS, "0"),
    "spinning=on": dict.fromkeys(SPINNING_KEYS, "1"),
    "prepacking=off": {PREPACKING_KEY: "1"},
    "strict": {FALLBACK_KEY: "1"},
}
"""What stands in names for session config entries."""

SHORT_KEYS = {AFFINITY_KEY: "affinities", BLOCK_KEY: "dynamic_block_base"}

PREFIXES = ("config.", "option.")
"""What tells entries apart in names whose own keys would not: session config keys have dots, provider options none."""


def options_name(options: RunOptions) -> str:
    """The provider with what differs from the defaults, as in `nnapi+USE_FP16` or `cpu+threads=2+spinning=off`.

    No two different sets of provider options and session config entries give the same name.
    """
    fields = {
        "threads": (options.intra_op_threads, 0),
        "inter_op_threads": (options.inter_op_threads, 0),
        "execution_mode": (options.execution_mode, ExecutionMode.SEQUENTIAL),
        "level": (options.optimization_level, OptimizationLevel.ALL),
        "thread_cores": (options.thread_cores, ""),
        "thread_nice": (options.thread_nice, 0),
        "allocator": (options.allocator, Allocator.DEFAULT),
    }
    parts = [_plain(options.provider), *sorted({flag.value for flag in options.flags})]
    parts += [f"{name}={value}" for name, (value, default) in fields.items() if value != default]
    parts += [] if options.cpu_arena else ["memory_arena=off"]
    parts += [] if options.memory_pattern else ["memory_pattern=off"]
    parts += ["device_tensors=on"] if options.device_tensors else []
    config = options.session_config
    short = {word: entries for word, entries in SHORT.items() if entries.items() <= config.items()}
    covered = {key for entries in short.values() for key in entries}
    entries = list(short)
    for key, value in config.items():
        if key not in covered:
            raw = key if "." in key and not key.startswith(PREFIXES) else f"config.{key}"
            entries.append(f"{SHORT_KEYS.get(key) or _plain(raw)}={_plain(value, '+%')}")
    for key, value in options.provider_options.items():
        raw = f"option.{key}" if "." in key or key in (*FIELDS, *ENTRIES) else key
        entries.append(f"{_plain(raw)}={_plain(value, '+%')}")
    return "+".join([*parts, *sorted(entries)])


def _plain(text: str, special: str = "+%=") -> str:
    """Text without what has a meaning in names, in the way of URLs."""
    return "".join(f"%{ord(char):02X}" if char in special else char for char in text)


log = logging.getLogger(__name__)


def deny_list() -> Path:
    """The deny list of this user; a text file in JSON."""
    return state_folder() / "denied.json"


def denied_here(
    options: RunOptions, facts: DeviceFacts, entries: Sequence[Denied], model_sha256: str
) -> Failure | None:
    """Why a model is not to be run so on a device: impossible there, or known to crash it. None to go on."""
    return impossible_here(options, facts) or denial(facts, options, entries, model_sha256)


def known_denied() -> list[Denied]:
    """What is known to crash; raises RunnerError for a deny list that cannot be read."""
    return read_denied(deny_list())


def blame(device: Device, facts: DeviceFacts, spec: RunSpec, crashed: RunResult) -> Denied | None:
    """The smallest part of a crashed run's options that crashes, entered in the deny list.

    Where the provider crashes with no option at all, it is denied for this model alone. None where an entry of another
    run explains it by now, where the crash does not come again, or comes on the CPU without any option: then it is the
    model's or the library's.
    """
    if denied_here(spec.options, facts, known_denied(), spec.model_sha256 or ""):
        return None
    last = crashed

    def crashes(options: RunOptions) -> bool:
        nonlocal last
        if impossible_here(options, facts):
            return False
        result = device.run(msgspec.structs.replace(spec, options=options))
        again = result.failure is not None and result.failure.kind is FailureKind.CRASH
        last = result if again else last
        return again

    if not crashes(spec.options):
        log.warning("%s: the crash does not come again: nothing is entered in the deny list", device.name)
        return None
    smallest = smallest_failing(spec.options, crashes)
    if smallest == RunOptions():
        log.warning("%s: it crashes with no options at all: nothing is entered in the deny list", device.name)
        return None
    entry = Denied(
        model_sha256=None if parts(smallest) else spec.model_sha256,
        devices=class_for(facts, smallest),
        options=smallest,
        ort_version=last.ort_version,
        kind=FailureKind.CRASH,
        message=last.failure.message[:300] if last.failure else "",
        seen_at=utc_now(),
    )
    add_denied(deny_list(), entry)
    return entry


ALL_FILES = "files"
"""What stands for the model where files are measured as they are: every file is compared with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a model is measured with, and the labelled set (samples stacked along a first axis) that it answers.

    With a `stream` the steady measurement is its steps, which begin with `tensors`.

    `outputs_limit_bytes` is what its outputs may have at most: the host knows how large the original's are.
    """

    tensors: tuple[TensorFile, ...] = ()
    labelled: TensorFile | None = None
    stream: Stream | None = None
    dimensions: dict[str, int] = field(default_factory=dict)
    outputs_limit_bytes: int = OUTPUTS_LIMIT_BYTES


OUTPUTS_FACTOR, OUTPUTS_ROOM_BYTES = 4, 16 << 20
"""A device's outputs may be larger than the original's (detections of a model in half precision), within reason."""


def inputs_of(reference: Reference, dimensions: dict[str, int]) -> Inputs:
    """What the runs of a model are given: the reference's own inputs, and its labelled set."""
    labelled = reference.labelled.inputs if reference.labelled else None
    outputs = (*reference.outputs, *((reference.labelled.outputs,) if reference.labelled else ()))
    limit_bytes = OUTPUTS_ROOM_BYTES + OUTPUTS_FACTOR * sum(map(tensor_bytes, outputs))
    return Inputs(
        tensors=reference.inputs,
        labelled=labelled,
        stream=reference.stream.stream if reference.stream and reference.stream.declared else None,
        dimensions=dimensions,
        outputs_limit_bytes=limit_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What is measured over all rounds: a file with run options on a device.

    `variant` is its variant's name, `file` its path or that in the folder of artifacts. `source` names the model in its
    precision, whose inputs it is given. `session_options` are those that the file needs. `mapped` runs read the file
    where it lies in memory, as apps for Android do. `library` is libonnxruntime to run with in place of the device's,
    `inputs` what it is given in place of its source's.
    """

    device: str
    model: str
    variant: str
    source: str
    file: str
    sha256: str
    size_bytes: int
    options: RunOptions
    session_options: Mapping[str, str] = field(default_factory=dict)
    mapped: bool = False
    mode: MeasureMode = MeasureMode.STEADY
    library: str | None = None
    inputs: Inputs | None = None

    @property
    def run_options(self) -> RunOptions:
        """What is really run with: how the file is loaded, its own session options, and those asked for before them."""
        loading = MAPPED if self.mapped else {}
        session_config = {**loading, **self.session_options, **self.options.session_config}
        return msgspec.structs.replace(self.options, session_config=session_config)

    @property
    def run_name(self) -> str:
        """`VARIANT/PROVIDER…`, as baselines in configs and tables name it."""
        return f"{self.variant}/{options_name(self.options)}"

    @property
    def key(self) -> str:
        """Unique in a campaign: device, model, variant, options, and the mode where it is not the steady state."""
        mode = "" if self.mode is MeasureMode.STEADY else f"@{self.mode}"
        return f"{self.device}/{self.model}/{self.run_name}{mode}"

    def skipped(self, reason: str, remedy: str = "") -> Skipped:
        """That it is not possible there, why, and what to do."""
        return Skipped(
            what=reason, remedy=remedy, device=self.device, model=self.model, variant=self.variant,
            run=options_name(self.options),
        )  # fmt: skip


def run_of(device: str, artifact: Artifact, options: RunOptions, *, mapped: bool = False) -> PlannedRun:
    """An artifact with run options on a device."""
    return PlannedRun(
        device=device,
        model=artifact.model,
        variant=artifact.variant.name,
        source=artifact.source,
        file=artifact.file,
        sha256=artifact.sha256,
        size_bytes=artifact.total_bytes,
        options=options,
        session_options=artifact.session_options,
        mapped=mapped,
    )


def in_modes(planned_runs: Sequence[PlannedRun], measure: MeasureConfig) -> list[PlannedRun]:
    """The runs once for each mode that is asked for."""
    return [dataclasses.replace(planned, mode=mode) for mode in measure.modes for planned in planned_runs]


NO_GPU = (
    "by default a GPU is measured where the device names it: phones with Android 10 or later",
    'to run it here, in software perhaps, name it: compare = ["webgpu"], or a [[runs]] table',
)
"""Why the advised run on a GPU is left out, and what to do."""


def plan_runs(
    runs: Sequence[RunConfig],
    artifacts: Sequence[Artifact],
    devices: Sequence[DeviceFacts],
    denied: Sequence[Denied] = (),
    contexts: Sequence[NpuContext] = (),
    *,
    advised: bool | None = None,
) -> tuple[list[PlannedRun], list[Skipped]]:
    """Every artifact with every run that its variant matches on every device, split in legal and skipped.

    `advised`: nobody asked for these runs, so a GPU takes part only where the device names one; by default whether they
    are ADVISED_RUNS.

    Beside them contexts with runs by QNN, on phones whose loader takes them and in the simulators of other devices.

    Raises ConfigError for a [[runs]] table that makes no sense, as `run_options` does.
    """
    planned_runs: list[PlannedRun] = []
    skipped: list[Skipped] = []
    advised = tuple(runs) == ADVISED_RUNS if advised is None else advised
    for facts in devices:
        for planned, artifact in _wanted(runs, artifacts, facts):
            failure = denied_here(planned.run_options, facts, denied, planned.sha256)
            replayed = artifact.unreplayable if planned.options.session_config.get(REPLAY_KEY) == "1" else ()
            if advised and facts.gpu is None and provider_named(planned.options.provider).gpu:
                skipped.append(planned.skipped(*NO_GPU))
            elif failure:
                skipped.append(planned.skipped(failure.message, failure.remedy))
            elif replayed:
                reason = f"ONNX Runtime cannot replay its own records of {', '.join(replayed)}"
                skipped.append(planned.skipped(reason))
            else:
                planned_runs.append(planned)
        for planned, refused in _of_contexts(runs, contexts, facts):
            failure = denied_here(planned.run_options, facts, denied, planned.sha256)
            if refused:
                skipped.append(planned.skipped(refused))
            elif failure:
                skipped.append(planned.skipped(failure.message, failure.remedy))
            else:
                planned_runs.append(planned)
    return planned_runs, skipped


def _of_contexts(
    runs: Sequence[RunConfig], contexts: Sequence[NpuContext], facts: DeviceFacts
) -> Iterator[tuple[PlannedRun, str]]:
    """Runs of contexts on a device, with why it cannot be; a simulator is told the context's chip."""
    ways = [(run.variants, options) for run in runs for options in run_options(run) if options.provider == QNN]
    phone = chip_of_phone(facts.soc.rpartition(" ")[2])
    seen = set()
    for context, (patterns, options) in product(contexts, ways):
        chip, asked = context.chip, options.provider_options.get("soc_model")
        if facts.name.startswith("adb:") and phone is None:
            refused = f"no Snapdragon whose NPU is known: {facts.soc or 'the phone does not tell its chip'}"
        elif facts.name.startswith("adb:") and phone:
            loading, why, _ = loader_answer(built_for(context.compatibility), phone)
            refused = why if loading is Loading.REFUSED else ""
        else:
            other = "" if asked in (None, chip.name, str(chip.soc_model)) else f"the run asks for {asked}"
            refused = context.not_run or other
            options = msgspec.structs.replace(
                options, provider_options={**options.provider_options, "soc_model": asked or chip.name}
            )
        planned = PlannedRun(
            device=facts.name,
            model=context.model,
            variant=context.variant.name,
            source=context.source,
            file=context.file,
            sha256=context.sha256,
            size_bytes=context.total_bytes,
            options=options,
        )
        if any(context.variant.matches(pattern) for pattern in patterns) and planned.key not in seen:
            seen.add(planned.key)
            yield planned, refused


def _wanted(
    runs: Sequence[RunConfig], artifacts: Sequence[Artifact], facts: DeviceFacts
) -> Iterator[tuple[PlannedRun, Artifact]]:
    """Planned runs of one device by model, then in the order of the config; equal ones once."""
    seen = set()
    ways = [(run.variants, options) for run in runs for options in run_options(run)]
    for model in dict.fromkeys(artifact.model for artifact in artifacts):
        for (patterns, options), artifact in product(ways, artifacts):
            planned = run_of(facts.name, artifact, options, mapped=facts.platform == Platform.ANDROID)
            meant = artifact.model == model and matches(patterns, options.provider, artifact.variant)
            if meant and planned.key not in seen:
                seen.add(planned.key)
                yield planned, artifact


def matches(patterns: Sequence[str], provider: str, variant: Variant) -> bool:
    """Whether a way to run is meant for a variant: aware ones run with a provider that they know, or the CPU."""
    named = any(variant.matches(pattern) for pattern in patterns)
    family = {PROVIDER_RULES[name].provider for name in variant.providers}
    return named and (not family or provider in family | {"cpu"})


def baseline_of(planned_runs: Sequence[PlannedRun], name: str | None) -> PlannedRun:
    """The planned run that the others of its device and model are compared with; `planned_runs` are those, in order.

    `name` is `VARIANT` or `VARIANT/PROVIDER…`; without it, or where it is not among them, the first on the CPU.
    """
    named = [planned for planned in planned_runs if name in (planned.run_name, planned.variant)]
    on_cpu = [planned for planned in planned_runs if planned.options.provider == "cpu"]
    return (named or on_cpu or list(planned_runs))[0]


def representatives(planned_runs: Sequence[PlannedRun]) -> dict[str, PlannedRun]:
    """The id of a planned run to that whose runs count for it: itself, or the first that runs the same there.

    The same bytes with the same session options: measuring them twice gives noise and no knowledge.
    """
    first: dict[tuple[str | None, ...], PlannedRun] = {}
    run_for = {}
    for run in planned_runs:
        options = msgspec.json.encode(run.run_options, order="sorted").decode()
        what = run.device, run.model, run.sha256, options, run.mode, run.library
        run_for[planned_id(run)] = first.setdefault(what, run)
    return run_for


def distinct(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that are measured, each for all that run the same."""
    run_for = representatives(runs)
    return [run for run in runs if run_for[planned_id(run)] is run]


def recorded(runs: Sequence[PlannedRun], baseline: str | None) -> Iterator[RecordedRun]:
    """The runs as they are stored, with the baseline of each device and model marked, and what runs the same."""
    run_for, compared = representatives(runs), baselines(runs, baseline)
    by_id = {planned_id(run): run for run in runs}
    for run in (by_id[name] for name in compared):
        first = run_for[planned_id(run)]
        yield RecordedRun(
            id=planned_id(run),
            device=run.device,
            model=run.model,
            variant=run.variant,
            options=run.options,
            run=options_name(run.options),
            baseline=planned_id(run) == compared[planned_id(run)],
            same_as="" if first is run else planned_id(first),
            mode=run.mode,
            mapped=run.run_options.session_config.get(BYTES_KEY) == "1",
        )


def baselines(runs: Sequence[PlannedRun], name: str | None) -> dict[str, str]:
    """The id of each run to that of its baseline: the run of the same device, model and mode that was asked for."""
    groups: dict[tuple[str, str, MeasureMode], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.device, run.model, run.mode), []).append(run)
    run_for = representatives(runs)
    return {
        planned_id(run): planned_id(run_for[planned_id(baseline_of(group, name))])
        for group in groups.values()
        for run in group
    }


def order_of_round(planned_runs: Sequence[PlannedRun], number: int) -> list[PlannedRun]:
    """Runs in the order of a round: every other round runs backwards, so that none always runs warm."""
    return list(planned_runs) if number % 2 == 0 else list(reversed(planned_runs))


def planned_id(planned: PlannedRun) -> str:
    """The identity of a planned run in specs and in the database: its key, or that's digest where it is long."""
    return planned.key if len(planned.key) <= 200 else hashlib.sha256(planned.key.encode()).hexdigest()


def decision_rule(measure: MeasureConfig) -> DecisionRule:
    """The rule of a config, which writes shares in percent."""
    looks: tuple[int, ...] = ()
    if measure.rounds == "auto":  # it looks the last time where it ends at the latest
        most = measure.most_rounds
        looks = (*(look for look in (*LOOKS, *LATER_LOOKS) if look < most), most)
    return DecisionRule(margin=measure.margin_percent / 100, least=measure.least_percent / 100, looks=looks)


def spec_id(planned: PlannedRun, number: int) -> str:
    """The identity of one run: planned run and round."""
    return f"{planned_id(planned)}#{number}"


SPARE_SECONDS = 60.0
"""What a run may take for loading beyond the time that it is asked to run for."""


def spec_of(
    planned: PlannedRun, number: int, *, model_file: str, library: str | None, inputs: Inputs, measure: MeasureConfig
) -> RunSpec:
    """The RunSpec of one planned run in one round; the artifact's own session options come with it.

    The labelled set is answered in the first round only: the same file gives the same answers in each. A cold run ends
    with its first inference, a sustained one when its time is over.
    """
    change, limit = msgspec.structs.replace, measure.timeout_seconds
    plugin, *files = measure.plugins.get(planned.run_options.provider, ("",))
    spec = RunSpec(
        id=spec_id(planned, number),
        model=model_file,
        model_sha256=planned.sha256,
        library=library,
        options=change(planned.run_options, custom_ops=(*planned.run_options.custom_ops, *custom_ops.given())),
        plugin=Plugin(library=plugin, files=tuple(files)) if plugin else None,
        inputs=inputs.tensors,
        labelled=inputs.labelled if number == 0 and planned.mode is MeasureMode.STEADY else None,
        dimensions=inputs.dimensions,
        outputs_limit_bytes=inputs.outputs_limit_bytes,
        perf_test=measure.perf_test,
    )
    if planned.mode is MeasureMode.COLD:
        return change(spec, warmup=0, min_runs=0, min_seconds=0.0, timeout_seconds=limit, cold=True)
    if planned.mode is MeasureMode.SUSTAINED:
        seconds = measure.sustained_seconds
        return change(spec, warmup=0, timeout_seconds=max(limit, seconds + SPARE_SECONDS), sustain_seconds=seconds)
    runs, seconds, longest = measure.min_runs, measure.min_seconds, measure.max_seconds
    if measure.rule is MeasureRule.MLPERF:
        # At least as much as the single-stream scenario asks for; a slow model takes the longer for its inferences.
        runs, seconds = max(runs, MLPERF_RUNS), max(seconds, MLPERF_SECONDS)
        longest = max(longest, 10 * seconds)
        limit = max(limit, longest + SPARE_SECONDS)
    spec = change(
        spec, warmup=measure.warmup, min_runs=runs, min_seconds=seconds, max_seconds=longest, timeout_seconds=limit
    )
    if inputs.stream is None:
        return spec
    return change(spec, stream=inputs.stream, labelled=None, dimensions={}, warmup=0, min_runs=0, min_seconds=0.0)


ARTIFACT, RELEASE, OPTIONS = "artifact", "ONNX Runtime", "session options"
INPUTS, DEVICE, SYSTEM, HOST = "inputs", "device", "system", "host"
DRIVER, MADE_WITH = "driven by", "made with"

TESTED: Final = (ARTIFACT, RELEASE, OPTIONS)
"""What a comparison is about: a change of these is a cause to be named."""

NOT_SETTINGS = frozenset({
    "id", "model", "model_sha256", "library", "options", "inputs", "labelled", "dimensions", "outputs_folder",
    "outputs_limit_bytes", "timeout_seconds", "log_level", "profile", "version",
})  # fmt: skip
"""Fields of a RunSpec that do not say how it measures."""

SETTINGS: Final = {name: f"measurement {name}" for name in RunSpec.__struct_fields__ if name not in NOT_SETTINGS}
"""The names of facts on how a run was measured, by the field of its RunSpec."""

ENVIRONMENT: Final = (INPUTS, *SETTINGS.values(), DEVICE, SYSTEM, HOST)
"""What must be the same for latencies of different days to be one history."""

NAMES: Final = (*TESTED, *ENVIRONMENT, DRIVER, MADE_WITH)
"""All, in the order in which they are shown; the computer that drives a phone is not its environment."""

ON_THIS_COMPUTER = ("local", "android-host:", "linux-host:")
"""How names of devices begin that run on the host itself: its processor and system are theirs."""

MAKERS = ("ort-mobile", "onnxruntime", "onnx")
"""Programs whose versions decide the bytes of artifacts; a bundle's manifest names them."""

Facts = dict[str, str]
"""Texts under the names above; a name is missing where nothing is known."""

NOT_KNOWN = "not known"


class ChangedFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that differs; "not known" for a side that was stored without it."""

    what: str
    before: str
    after: str


def facts_of_run(run: RunRecord) -> Facts:
    """The facts that a stored run has itself: its file, the release that ran it, options, inputs, settings."""
    tensors = [f"{tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in run.spec.inputs]
    sizes = [f"{name}={size}" for name, size in sorted(run.spec.dimensions.items())]
    settings = {fact: msgspec.to_builtins(getattr(run.spec, name)) for name, fact in SETTINGS.items()}
    texts = {
        ARTIFACT: run.spec.model_sha256 or "",
        RELEASE: run.result.ort_version,
        OPTIONS: options_name(run.spec.options),
        INPUTS: ", ".join([*tensors, *sizes]),
        # Without a text, setting what was not set would count as no change.
        **{
            fact: "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            for fact, value in settings.items()
        },
    }
    return {name: text for name, text in texts.items() if text}


def facts_of_place(device: str, facts: DeviceFacts | None, host: Host) -> Facts:
    """The facts of a device by its name, and of the host, which is the device itself or drives it."""
    texts = {}
    if facts:
        level = f"API {facts.api_level}" if facts.api_level else ""
        texts[DEVICE] = _joined(facts.manufacturer, facts.model, facts.soc)
        texts[SYSTEM] = _joined(facts.platform, facts.os_release, level, facts.fingerprint)
    role = HOST if device.startswith(ON_THIS_COMPUTER) else DRIVER
    texts[role] = _joined(host.system, host.machine, host.cpu, f"{host.cores} cores" if host.cores else "")
    return {name: text for name, text in texts.items() if text}


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedFact, ...]:
    """What differs, in the order of NAMES; what neither knows is no change."""
    return tuple(
        ChangedFact(what=name, before=before.get(name, NOT_KNOWN), after=after.get(name, NOT_KNOWN))
        for name in NAMES
        if before.get(name) != after.get(name)
    )
