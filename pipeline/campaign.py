"""From a config and its artifacts to the runs that are legal, and a reason for each that is not. Pure functions."""

import fnmatch
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from device_runner.blame import Denied
from device_runner.device import DeviceFacts
from device_runner.spec import NnapiFlag, RunOptions, RunSpec, TensorFile
from pipeline.blaming import denied_here
from pipeline.config import REPLAY_KEY, MeasureConfig, RunConfig
from pipeline.errors import ConfigError
from pipeline.variant import Artifact, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One thing that is measured over all rounds: an artifact with run options on a device."""

    device: str
    artifact: Artifact
    options: RunOptions

    @property
    def run_name(self) -> str:
        """`VARIANT/PROVIDER…`, as baselines in configs and tables name it."""
        return f"{self.artifact.variant.name}/{options_name(self.options)}"

    @property
    def key(self) -> str:
        """Unique in a campaign: device, model, variant and options."""
        return f"{self.device}/{self.artifact.model}/{self.run_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLane:
    """A run that the config asks for and that is not possible there."""

    lane: Lane
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a model is measured with, and the labelled set (samples stacked along a first axis) that it answers."""

    tensors: tuple[TensorFile, ...] = ()
    labelled: TensorFile | None = None
    dimensions: dict[str, int]


def options_name(options: RunOptions) -> str:
    """The provider with what differs from the defaults, as in `nnapi+USE_FP16` or `cpu+threads=2`."""
    parts = [options.provider, *sorted(flag.value for flag in options.flags)]
    parts += [f"threads={options.intra_op_threads}"] if options.intra_op_threads else []
    parts += [f"{key}={value}" for key, value in sorted((options.provider_options | options.session_config).items())]
    return "+".join(parts)


def run_options(run: RunConfig) -> RunOptions:
    """The options that a [[runs]] table means; raises ConfigError for a flag that NNAPI does not have."""
    return RunOptions(
        provider=run.provider,
        provider_options=dict(run.options),
        flags=tuple(_flag(flag) for flag in run.flags),
        intra_op_threads=run.threads,
        session_config=dict(run.session_config),
    )


def _flag(text: str) -> NnapiFlag:
    name = text.removeprefix("NNAPI_FLAG_")
    if name in set(NnapiFlag):
        return NnapiFlag(name)
    known = ", ".join(NnapiFlag)
    raise ConfigError(f"unknown NNAPI flag {text!r}", where="[[runs]] flags", remedy=f"it takes: {known}")


def plan_lanes(
    runs: Sequence[RunConfig],
    artifacts: Sequence[Artifact],
    devices: Sequence[DeviceFacts],
    denied: Sequence[Denied] = (),
) -> tuple[list[Lane], list[SkippedLane]]:
    """Every artifact with every run that its variant matches on every device, split in legal and skipped.

    Raises ConfigError for a [[runs]] table that matches no variant at all: nobody writes that on purpose.
    """
    lanes: list[Lane] = []
    skipped: list[SkippedLane] = []
    for facts in devices:
        for lane in _wanted(runs, artifacts, facts.name):
            failure = denied_here(lane.options, facts, denied)
            reason = failure.message if failure else _unreplayable(lane)
            if reason:
                skipped.append(SkippedLane(lane=lane, reason=reason))
            else:
                lanes.append(lane)
    return lanes, skipped


def _unreplayable(lane: Lane) -> str:
    """Why a run that asks for replay cannot load the artifact, or ""."""
    broken = lane.artifact.unreplayable
    asked = lane.options.session_config.get(REPLAY_KEY) == "1"
    return f"ONNX Runtime cannot replay its own records of {', '.join(broken)}" if broken and asked else ""


def _wanted(runs: Sequence[RunConfig], artifacts: Sequence[Artifact], device: str) -> Iterator[Lane]:
    """Lanes of one device by model, then in the order of the config; equal ones once."""
    seen = set()
    for model in dict.fromkeys(artifact.model for artifact in artifacts):
        for run in runs:
            for artifact in artifacts:
                lane = Lane(device=device, artifact=artifact, options=run_options(run))
                if artifact.model == model and matches(run, artifact.variant) and lane.key not in seen:
                    seen.add(lane.key)
                    yield lane


def matches(run: RunConfig, variant: Variant) -> bool:
    """Whether a [[runs]] table is meant for a variant: aware ones run with a provider that they know, or the CPU."""
    named = any(fnmatch.fnmatchcase(variant.name, pattern) for pattern in run.variants)
    family = {name.partition("-")[0] for name in variant.providers}
    return named and (not family or run.provider in family | {"cpu"})


def baseline_of(lanes: Sequence[Lane], wanted: str | None) -> Lane:
    """The lane that the others of its device and model are compared with; `lanes` are those, in order.

    `wanted` is `VARIANT` or `VARIANT/PROVIDER…`; without it, or where it is not among them, the first on the CPU.
    """
    named = [lane for lane in lanes if wanted in (lane.run_name, lane.artifact.variant.name)]
    on_cpu = [lane for lane in lanes if lane.options.provider == "cpu"]
    return (named or on_cpu or list(lanes))[0]


def order_of_round(lanes: Sequence[Lane], number: int) -> list[Lane]:
    """Lanes in the order of a round: every other round runs backwards, so that no lane always runs warm."""
    return list(lanes) if number % 2 == 0 else list(reversed(lanes))


def lane_id(lane: Lane) -> str:
    """The identity of a lane in specs and in the database: its key, or that's digest where it is long."""
    return lane.key if len(lane.key) <= 200 else hashlib.sha256(lane.key.encode()).hexdigest()


def spec_id(lane: Lane, number: int) -> str:
    """The identity of one run: lane and round."""
    return f"{lane_id(lane)}#{number}"


def spec_of(
    lane: Lane, number: int, *, model_file: str, library: str | None, inputs: Inputs, measure: MeasureConfig
) -> RunSpec:
    """The RunSpec of one lane in one round; the artifact's own session options come with it."""
    options = msgspec.structs.replace(
        lane.options, session_config=lane.artifact.session_options | lane.options.session_config
    )
    return RunSpec(
        id=spec_id(lane, number),
        model=model_file,
        model_sha256=lane.artifact.sha256,
        library=library,
        options=options,
        inputs=inputs.tensors,
        labelled=inputs.labelled,
        dimensions=inputs.dimensions,
        warmup=measure.warmup,
        min_runs=measure.min_runs,
        min_seconds=measure.min_seconds,
        max_seconds=measure.max_seconds,
        timeout_seconds=measure.timeout_seconds,
    )
