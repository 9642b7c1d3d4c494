"""From a config's `[[runs]]` and artifacts to named runs that are legal, in their order, and why others are not."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner.device import DeviceFacts
from pipeline import config as configs
from pipeline.campaign.denied import denied_here
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.record import RecordedRun, Skipped
from pipeline.campaign.run_options import run_options
from pipeline.campaign.statistics import compare as run_compare
from pipeline.compat import contexts as npu_contexts
from pipeline.core import providers as provider_rules
from pipeline.core.variant import Artifact, Variant


def in_modes(planned_runs: Sequence[PlannedRun], measure: configs.MeasureConfig) -> list[PlannedRun]:
    """The runs once for each mode that is asked for."""
    return [dataclasses.replace(planned, mode=mode) for mode in measure.modes for planned in planned_runs]


NO_GPU = (
    "by default a GPU is measured where the device names it: phones with Android 10 or later",
    'to run it here, in software perhaps, name it: compare = ["webgpu"], or a [[runs]] table',
)
"""Why the advised run on a GPU is left out, and what to do."""


def plan_runs(
    runs: Sequence[configs.RunConfig],
    artifacts: Sequence[Artifact],
    devices: Sequence[DeviceFacts],
    denied: Sequence[runner_options.Denied] = (),
    contexts: Sequence[npu_contexts.NpuContext] = (),
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
    advised = tuple(runs) == configs.ADVISED_RUNS if advised is None else advised
    for facts in devices:
        for planned, artifact in _wanted(runs, artifacts, facts):
            failure = denied_here(planned.run_options, facts, denied, planned.sha256)
            replayed = artifact.unreplayable if planned.options.session_config.get(configs.REPLAY_KEY) == "1" else ()
            if advised and facts.gpu is None and runner_providers.provider_named(planned.options.provider).gpu:
                skipped.append(planned.skipped(*NO_GPU))
            elif failure:
                skipped.append(planned.skipped(failure.what, failure.remedy))
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
                skipped.append(planned.skipped(failure.what, failure.remedy))
            else:
                planned_runs.append(planned)
    return planned_runs, skipped


def _of_contexts(
    runs: Sequence[configs.RunConfig], contexts: Sequence[npu_contexts.NpuContext], facts: DeviceFacts
) -> Iterator[tuple[PlannedRun, str]]:
    """Runs of contexts on a device, with why it cannot be; a simulator is told the context's chip."""
    ways = [
        (run.variants, options)
        for run in runs
        for options in run_options(run)
        if provider_rules.of_chips(options.provider)
    ]
    phone = runner_providers.chip_of_phone(facts.soc.rpartition(" ")[2])
    seen = set()
    for context, (patterns, options) in product(contexts, ways):
        chip, asked = context.chip, options.provider_options.get("soc_model")
        if facts.name.startswith("adb:") and phone is None:
            refused = f"no Snapdragon whose NPU is known: {facts.soc or 'the phone does not tell its chip'}"
        elif facts.name.startswith("adb:") and phone:
            loading, why, _ = npu_contexts.loader_answer(npu_contexts.built_for(context.compatibility), phone)
            refused = why if loading is npu_contexts.Loading.REFUSED else ""
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
        if any(context.variant.matches(pattern) for pattern in patterns) and planned.text not in seen:
            seen.add(planned.text)
            yield planned, refused


def _wanted(
    runs: Sequence[configs.RunConfig], artifacts: Sequence[Artifact], facts: DeviceFacts
) -> Iterator[tuple[PlannedRun, Artifact]]:
    """Planned runs of one device by model, then in the order of the config; equal ones once."""
    seen = set()
    ways = [(run.variants, options) for run in runs for options in run_options(run)]
    for model in dict.fromkeys(artifact.model for artifact in artifacts):
        for (patterns, options), artifact in product(ways, artifacts):
            planned = run_of(facts.name, artifact, options, mapped=facts.platform == configs.Platform.ANDROID)
            meant = artifact.model == model and matches(patterns, options.provider, artifact.variant)
            if meant and planned.text not in seen:
                seen.add(planned.text)
                yield planned, artifact


def matches(patterns: Sequence[str], provider: str, variant: Variant) -> bool:
    """Whether a way to run is meant for a variant: aware ones run with a provider that they know, or the CPU."""
    named = any(variant.matches(pattern) for pattern in patterns)
    family = {provider_rules.PROVIDER_RULES[name].provider for name in variant.providers}
    return named and (not family or provider in family or runner_providers.on_cpu(provider))


def baseline_of(planned_runs: Sequence[PlannedRun], name: str | None) -> PlannedRun:
    """The planned run that the others of its device and model are compared with; `planned_runs` are those, in order.

    `name` is `VARIANT` or `VARIANT/PROVIDER…`; without it, or where it is not among them, the first on the CPU.
    """
    named = [planned for planned in planned_runs if name in (planned.way, planned.variant)]
    on_cpu = [planned for planned in planned_runs if planned.options.on_cpu]
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
        run_for[run.id] = first.setdefault(what, run)
    return run_for


def distinct(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that are measured, each for all that run the same."""
    run_for = representatives(runs)
    return [run for run in runs if run_for[run.id] is run]


def recorded(runs: Sequence[PlannedRun], baseline: str | None) -> Iterator[RecordedRun]:
    """The runs as they are stored, with the baseline of each device and model marked, and what runs the same."""
    run_for, compared = representatives(runs), baselines(runs, baseline)
    by_id = {run.id: run for run in runs}
    for run in (by_id[name] for name in compared):
        first = run_for[run.id]
        yield run.recorded(baseline=run.id == compared[run.id], same_as="" if first is run else first.id)


def baselines(runs: Sequence[PlannedRun], name: str | None) -> dict[str, str]:
    """The id of each run to that of its baseline: the run of the same device, model and mode that was asked for."""
    groups: dict[tuple[str, str, configs.MeasureMode], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.device, run.model, run.mode), []).append(run)
    run_for = representatives(runs)
    return {run.id: run_for[baseline_of(group, name).id].id for group in groups.values() for run in group}


def order_of_round(planned_runs: Sequence[PlannedRun], number: int) -> list[PlannedRun]:
    """Runs in the order of a round: every other round runs backwards, so that none always runs warm."""
    return list(planned_runs) if number % 2 == 0 else list(reversed(planned_runs))


def decision_rule(measure: configs.MeasureConfig) -> run_compare.DecisionRule:
    """The rule of a config, which writes shares in percent."""
    looks: tuple[int, ...] = ()
    if measure.rounds == "auto":  # it looks the last time where it ends at the latest
        most = measure.most_rounds
        looks = (*(look for look in (*run_compare.LOOKS, *run_compare.LATER_LOOKS) if look < most), most)
    return run_compare.DecisionRule(margin=measure.margin_percent / 100, least=measure.least_percent / 100, looks=looks)
