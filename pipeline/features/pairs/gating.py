"""Gate and bisection: what paths name, which artifacts belong together, their rounds in pairs, and the outcome."""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import result as run_result
from device_runner.errors import RunnerError
from device_runner.spec import RunOptions, TensorFile
from pipeline import config as configs
from pipeline.campaign import changed_facts, run_options
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import specs as campaign_specs
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.core import files as storage
from pipeline.core import variant as core_variant
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.features.pairs.history import History
from pipeline.features.pairs.report import (
    ALARMS,
    BisectionEnd,
    BisectionReport,
    BisectionRow,
    GatedRun,
    GateOutcome,
    GateReport,
    PositionStanding,
    unconfirmed,
)
from pipeline.job import bench as job_bench
from pipeline.job import file_runs
from pipeline.job import stored as job_stored
from pipeline.release import manifest as bundle_manifest
from pipeline.report import wording

log = logging.getLogger(__name__)

MODEL_FILES = (".ort", ".onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSource:
    """What a path has: the runs of what ships, by model and target, and every planned run, by model and run.

    They are of no device yet. `library` is libonnxruntime to run with; without one phones have that of the first of
    `targets` that is like them.
    """

    path: Path
    shipped: dict[tuple[str, str], campaign_planned.PlannedRun]
    planned: dict[tuple[str, str], campaign_planned.PlannedRun] = field(default_factory=dict)
    targets: tuple[configs.Target, ...] = ()
    library: str | None = None

    @property
    def by_run(self) -> dict[tuple[str, str], campaign_planned.PlannedRun]:
        """Every planned run by model and run; of a bundle, which has no plan, what ships."""
        return self.planned or {(run.model, run.run_name): run for run in self.shipped.values()}


Pair = tuple[tuple[campaign_planned.PlannedRun, PairSource], tuple[campaign_planned.PlannedRun, PairSource]]
"""A base and a candidate of one model, each as its source has it."""


def _model_of(pair: Pair) -> str:
    """The model of a pair, or both."""
    return " → ".join(dict.fromkeys(run.model for run, _ in pair))


def model_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of some paths that are model files by their names."""
    return tuple(path for path in paths if path.is_file() and path.suffix.lower() in MODEL_FILES)


def read_sources(paths: Sequence[Path], order: file_runs.PerfOrder, work: Path) -> tuple[PairSource, ...]:
    """Each path as what can be measured: a bundle or an output folder with its own options and inputs, a model file
    with those of the order, made in `work`, which must stay while they are run. Guessed sizes of inputs are logged.

    Raises ConfigError for what cannot be measured, CheckFailed for a bundle that was changed.
    """
    inputs = file_runs.inputs_of_files(order, work)
    for finding in file_runs.guess_warnings(file_runs.guessed_sizes(order, inputs)):
        log.warning("%s: %s", finding.where, finding.text)
    inputs = {name: given for name, given in inputs.items() if given != campaign_planned.Inputs()}
    return tuple(_source(path, order.options, inputs.get(str(path))) for path in paths)


def _source(path: Path, options: Sequence[RunOptions], inputs: campaign_planned.Inputs | None) -> PairSource:
    if path.is_dir():
        if (path / bundle_manifest.MANIFEST_FILE).is_file():
            return _bundle_source(path)
        if job_stored.has_campaigns(path):
            return _folder_source(path)
    elif model_files([path]):
        digest = runner_files.sha256(path)
        # Two files have no models or targets in common: their options are what pairs them.
        runs = {
            ("", run_options.options_name(way)): _planned_run(path.name, path.stem, path, digest, way, inputs)
            for way in options
        }
        return PairSource(path=path, shipped=runs)
    raise ConfigError(
        "there is nothing to measure",
        where=str(path),
        why="it is no model file (.ort, .onnx), no bundle and no output folder of `ort-mobile run`"
        if path.exists()
        else "no file or folder has this name",
        remedy="name a model file, OUTPUT/bundle, or OUTPUT with its artifacts",
    )


def _planned_run(
    name: str, variant: str, file: Path, digest: str, options: RunOptions, inputs: campaign_planned.Inputs | None
) -> campaign_planned.PlannedRun:
    return campaign_planned.PlannedRun(
        device="",
        model=name,
        variant=variant,
        source=name,
        file=str(file.resolve()),
        sha256=digest,
        size_bytes=file.stat().st_size,
        options=options,
        inputs=inputs,
    )


def _bundle_source(folder: Path) -> PairSource:
    manifest = bundle_manifest.verify_bundle(folder)
    digests = {file.path: file.sha256 for file in manifest.files}
    libraries = bundle_manifest.bundled_libraries(folder)
    references = {reference.model: reference for reference in manifest.references}
    sizes = {model.model: model.dimensions for model in manifest.content.models}
    runs = {}
    for ships in manifest.content.ships:
        kept = references.get(core_variant.in_precision(ships.model, ships.variant.precision))
        tensors = tuple(
            TensorFile(
                name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, file=str((folder / tensor.path).resolve())
            )
            for tensor in (kept.inputs if kept else ())
        )
        inputs = (
            campaign_planned.Inputs(tensors=tensors)
            if tensors
            else campaign_planned.Inputs(dimensions=sizes.get(ships.model, {}))
        )
        runs[ships.model, ships.target] = _planned_run(
            ships.model,
            ships.variant.name,
            folder / ships.file,
            digests[ships.file],
            msgspec.structs.replace(ships.runs[0], custom_ops=libraries),
            inputs if inputs != campaign_planned.Inputs() else None,
        )
    return PairSource(path=folder, shipped=runs)


def _folder_source(folder: Path) -> PairSource:
    campaign = job_stored.stored(folder, None, None)
    record = campaign.record
    # Of one name the first is loaded: that of the bundle was measured, the config's may have been built again since.
    libraries = (
        *bundle_manifest.bundled_libraries(folder / storage.BUNDLE),
        *filter(os.path.isfile, record.config.custom_ops),
    )

    def inputs(source: str) -> campaign_planned.Inputs | None:
        """Those of the model's check, where the folder has them now: it may have been moved since."""
        reference, table = record.references.get(source), record.tables.get(source.partition("@")[0])
        tensors = reference.inputs if reference else ()
        files = [folder / storage.REFERENCES / source / Path(tensor.file).name for tensor in tensors]
        if reference is None or not all(path.is_file() for path in files):
            return campaign_planned.Inputs(dimensions=table.sizes) if table and table.sizes else None
        moved = tuple(
            msgspec.structs.replace(tensor, file=str(path.resolve()))
            for tensor, path in zip(tensors, files, strict=True)
        )
        return replace(campaign_specs.inputs_of(reference, {}), tensors=moved, labelled=None)

    def planned_run(artifact: Artifact, options: RunOptions) -> campaign_planned.PlannedRun:
        file = str((folder / storage.ARTIFACTS / artifact.file).resolve())
        options = msgspec.structs.replace(options, custom_ops=libraries)
        return replace(campaign_planned.run_of("", artifact, options), file=file, inputs=inputs(artifact.source))

    shipped = {
        (choice.artifact.model, choice.target.name): planned_run(choice.artifact, choice.options)
        for choice in campaign.choices
    }
    artifacts = {(artifact.model, artifact.variant.name): artifact for artifact in campaign.report.artifacts}
    runs = [
        planned_run(artifacts[planned.model, planned.variant], planned.options)
        for planned in record.planned
        if (planned.model, planned.variant) in artifacts and planned.mode is configs.MeasureMode.STEADY
    ]
    by_run = {(planned.model, planned.run_name): planned for planned in runs}
    return PairSource(path=folder, shipped=shipped, planned=by_run, targets=record.config.targets)


def paired(base: PairSource, candidate: PairSource) -> tuple[list[Pair], tuple[str, ...], tuple[str, ...]]:
    """What ships of both, by model and target; every planned run of both where one of them ships nothing; and what
    only the base, and only the candidate has. Raises ConfigError where they have nothing in common.
    """
    ships = bool(base.shipped and candidate.shipped)
    of_base, of_candidate = (source.shipped if ships else source.by_run for source in (base, candidate))
    pairs: dict[object, Pair] = {}
    for key in of_base.keys() & of_candidate.keys():
        pair = (of_base[key], base), (of_candidate[key], candidate)
        runs_what = [(run.sha256, msgspec.json.encode(run.run_options, order="sorted")) for run, _ in pair]
        pairs.setdefault((_model_of(pair), *runs_what), pair)
    if not pairs:
        names, others = (
            ", ".join(campaign_record.place(*key) for key in list(runs)[:5]) or "nothing"
            for runs in (of_base, of_candidate)
        )
        raise ConfigError(
            "the two have nothing in common",
            where=f"{base.path}, {candidate.path}",
            why=f"one has {names}, the other {others}",
            remedy="name two files, bundles or output folders of the same models and targets",
        )
    return (
        sorted(pairs.values(), key=lambda pair: (_model_of(pair), pair[1][0].run_name)),
        tuple(campaign_record.place(*key) for key in of_base if key not in of_candidate),
        tuple(campaign_record.place(*key) for key in of_candidate if key not in of_base),
    )


def require_unchanged(runs: Iterable[campaign_planned.PlannedRun]) -> None:
    """Raise CheckFailed for a file that is not the one of its record."""
    for run in runs:
        if not Path(run.file).is_file() or runner_files.sha256(Path(run.file)) != run.sha256:
            raise CheckFailed(
                "an artifact is not what was recorded",
                where=run.file,
                why="it is missing or was changed after the campaign",
                remedy=f"run the job again, or name its {storage.BUNDLE} folder",
            )


PlannedPair = tuple[GatedRun, list[campaign_planned.PlannedRun]]
"""The row of a pair on a device before any round, and its base and candidate; no runs where the row says all."""


def run_gate(
    base: PairSource,
    candidate: PairSource,
    histories: Sequence[History] | None,
    settings: configs.MeasureConfig,
    *,
    least: float,
    folder: Path,
    devices: Sequence[str],
    progress: Progress,
    wait_seconds: float = 0.0,
) -> GateReport:
    """Measure in pairs what histories suspect, without them everything; a row with its outcome for each pair.

    `least` is the share by which a candidate must be slower at least.
    Without devices on `local`, or with histories on those that they suspect. `folder` has the store of paired runs.
    Raises what opening devices, stores and sources raises.
    """
    report = GateReport(
        base=str(base.path),
        candidate=str(candidate.path),
        least=least,
        confidence=1 - ALARMS,
        histories=tuple(histories or ()),
    )
    unmatched: list[GatedRun] = []
    if histories is None:
        pairs, only_base, only_candidate = paired(base, candidate)
        by_device, devices = [("", pair) for pair in pairs], devices or ("local",)
    else:
        by_device, unmatched = _suspected(histories, base, candidate)
        only_base, only_candidate = (), ()
        devices = devices or tuple(dict.fromkeys(device for device, _ in by_device))
    not_suspected = tuple(
        GatedRun(
            device=row.device,
            model=row.model,
            base=row.run,
            candidate=row.run,
            outcome=GateOutcome.NOT_SUSPECTED,
            note=row.note,
        )
        for row in report.histories
        if not row.suspicion
    )
    report = msgspec.structs.replace(
        report, rows=(*unmatched, *not_suspected), only_base=only_base, only_candidate=only_candidate
    )
    if not by_device:
        return report
    require_unchanged(run for _, pair in by_device for run, _ in pair)
    with job_bench.open_bench(job_bench.opened(devices, wait_seconds), folder, progress) as bench:
        # A pair of no device is meant for each.
        by_device = [(name, pair) for device, pair in by_device for name in ([device] if device else bench.devices)]
        ready = [(device, pair) for device, pair in by_device if device in bench.devices]
        rows, measured_at, left = measure_pairs(list(planned_pairs(ready, bench)), settings, least, bench)
    reasons = {skipped.device: skipped.text for skipped in bench.unusable}
    # A suspicion on a device that is not ready is neither confirmed nor refuted.
    away = tuple(
        _row_without_rounds(device, pair, reasons.get(device, "the device was not asked for"))
        for device, pair in by_device
        if device not in bench.devices
    )
    warnings = (
        *(f"{skipped.device}: {skipped.text}" for skipped in bench.unusable),
        *(f"{device} was left before the end: {reason}" for device, reason in left.items()),
    )
    return msgspec.structs.replace(
        report, rows=(*rows, *away, *report.rows), measured_at=measured_at, warnings=warnings
    )


def _suspected(
    histories: Iterable[History], base: PairSource, candidate: PairSource
) -> tuple[list[tuple[str, Pair]], list[GatedRun]]:
    """What histories suspect, by device: the pairs to measure, and a row without verdict for what is not in both."""
    pairs, unmatched = [], []
    for history in histories:
        if not history.suspicion:
            continue
        key = (history.model, history.run)
        runs = [source.by_run.get(key) for source in (base, candidate)]
        if runs[0] and runs[1]:
            pairs.append((history.device, ((runs[0], base), (runs[1], candidate))))
            continue
        without = " and ".join(
            f"the {role} {_lacks(source)}"
            for role, source, run in zip(("base", "candidate"), (base, candidate), runs, strict=True)
            if run is None
        )
        unmatched.append(unconfirmed(history, without))
    return pairs, unmatched


def _lacks(source: PairSource) -> str:
    """What a source has in place of a run that a history suspects."""
    if model_files([source.path]):
        return f"{source.path.name} is a model file, which no history names: name output folders, or measure without"
    have = list(dict.fromkeys(campaign_record.place(*key) for key in source.by_run))
    return f"has no such run (it has {', '.join(have[:3]) or 'none'}{', …' if have[3:] else ''})"


def _row_without_rounds(
    device: str, pair: Pair, note: str = "", outcome: GateOutcome = GateOutcome.NOT_COMPARED
) -> GatedRun:
    """The row of a pair before its rounds, and for good where the pair is not run, for the reason in the note."""
    base, candidate = (run.run_name for run, _ in pair)
    return GatedRun(device=device, model=_model_of(pair), base=base, candidate=candidate, outcome=outcome, note=note)


def planned_pairs(pairs: Iterable[tuple[str, Pair]], bench: campaign_measure.Bench) -> Iterator[PlannedPair]:
    """Pairs as runs of the devices named with them: the same inputs for both, each with its own options and library."""
    entries = campaign_denied.known_denied()
    for device, pair in pairs:
        facts, model = bench.facts[device], _model_of(pair)
        given = [run.inputs for run, _ in reversed(pair) if run.inputs]  # the candidate's, as its app is to come
        runs = [
            replace(
                run,
                device=device,
                model=model,
                variant=f"{role}:{run.variant}",
                options=run.run_options,
                session_options={},
                library=job_bench.libraries_by_device({device: facts}, source.targets, source.library)[device],
                inputs=given[0] if given else campaign_planned.Inputs(),
            )
            for role, (run, source) in zip(("base", "candidate"), pair, strict=True)
        ]
        denied = [
            failure for run in runs if (failure := campaign_denied.denied_here(run.options, facts, entries, run.sha256))
        ]
        if _what_runs(runs[0]) == _what_runs(runs[1]):
            yield _row_without_rounds(device, pair, "the same file, options and library", GateOutcome.UNCHANGED), []
        elif denied:
            yield _row_without_rounds(device, pair, denied[0].message), []
        else:
            yield _row_without_rounds(device, pair), runs


def _what_runs(run: campaign_planned.PlannedRun) -> tuple[str, RunOptions, str | None]:
    """What is run, with custom operators by their digests: each bundle has a file of them."""
    custom_ops = tuple(map(runner_files.sha256, map(Path, run.options.custom_ops)))
    return run.sha256, msgspec.structs.replace(run.options, custom_ops=custom_ops), run.library


def plan_pairs(
    pairs: Sequence[PlannedPair], settings: configs.MeasureConfig, bench: campaign_measure.Bench
) -> campaign_measure.CampaignPlan:
    """The campaign of the pairs that are to be run; raises as `require_library`.

    Its id follows from the files, options, libraries, devices and settings: what differs in any of these is measured
    anew, everything else is stored once.
    """
    runs = [run for _, both in pairs for run in both]
    for library in dict.fromkeys(run.library for run in runs):
        job_bench.require_library([bench.devices[run.device] for run in runs if run.library == library], library)
    what = []
    for run in sorted(runs, key=lambda run: run.key):
        try:
            library = bench.devices[run.device].library_for(run.library).sha256
        except RunnerError:  # its runs say why
            library = run.library or ""
        system = changed_facts.facts_of_place(run.device, bench.facts[run.device], campaign_record.Host()).get(
            changed_facts.SYSTEM, ""
        )
        inputs = run.inputs or campaign_planned.Inputs()
        data = [runner_files.sha256(Path(tensor.file)) for tensor in inputs.tensors]
        what.append((run.key, *_what_runs(run)[:2], library, system, inputs.dimensions, data))
    one_round = msgspec.structs.replace(settings, rounds=1)  # more rounds go on with the campaign
    digest = hashlib.sha256(msgspec.json.encode((what, one_round), order="sorted")).hexdigest()
    return campaign_measure.CampaignPlan(
        campaign=f"gate-{digest[:24]}", planned_runs=runs, measure=settings, conditions=configs.ConditionsConfig()
    )


def measure_pairs(
    pairs: Sequence[PlannedPair], settings: configs.MeasureConfig, least: float, bench: campaign_measure.Bench
) -> tuple[tuple[GatedRun, ...], str, dict[str, str]]:
    """Run what of some pairs is not stored yet: a row for each, when they were measured, why devices were left."""
    plan = plan_pairs(pairs, settings, bench)
    records, left = bench.measure(CampaignRecord(id=plan.campaign, name="gate", created_at=run_result.utc_now()), plan)
    confidence = 1 - ALARMS / max(1, len(plan.planned_runs) // 2)  # Bonferroni: false alarms in all pairs together
    rows = []
    for row, runs in pairs:
        if runs:
            base, candidate = (records.get(campaign_planned.planned_id(run), []) for run in runs)
            row = with_verdict(row, base, candidate, least, confidence)
        rows.append(row)
    return tuple(rows), bench.store.campaign(plan.campaign).created_at if plan.planned_runs else "", left


def with_verdict(
    row: GatedRun, base: Sequence[RunRecord], candidate: Sequence[RunRecord], least: float, confidence: float
) -> GatedRun:
    """Slower where the interval of the ratio of medians lies above 1 by more than `least`, over the rounds that both
    have, or where means or 90th percentiles are shown to be slower; where rounds are too few, or times are an
    emulator's (`comparable`), it is not compared.
    """
    groups = [campaign_record.rounds_of(records) for records in (base, candidate)]
    statistics = [run_groups.describe(group) for group in groups]
    row = msgspec.structs.replace(
        row,
        base_median_ns=statistics[0].median_ns if statistics[0] else None,
        candidate_median_ns=statistics[1].median_ns if statistics[1] else None,
        changes=changed_facts.changes(changed_facts.facts_of_run(base[0]), changed_facts.facts_of_run(candidate[0]))
        if base and candidate
        else (),
    )
    if not all(map(run_groups.comparable, groups)):
        return msgspec.structs.replace(row, note="a phone's library ran on another machine: its times rank nothing")
    failures = (
        f"{role}: {record.result.failure.kind.value}: {record.result.failure.message}"
        for role, records in (("base", base), ("candidate", candidate))
        for record in records
        if record.result.failure
    )
    failure = next(failures, "")
    ratios = run_groups.paired_log_ratios(groups[1], groups[0])
    rounds, interval = len(ratios.logs), run_groups.ratio_interval(ratios.logs, confidence)
    if interval is None:
        outcome = GateOutcome.FAILED if failure else GateOutcome.NOT_COMPARED
        note = failure or f"{rounds} rounds are too few for an interval"
        return msgspec.structs.replace(row, outcome=outcome, rounds=rounds, note=note)
    intervals = {of: partial(run_groups.ratio_interval, logs) for of, logs in ratios.tails.items()}
    tails = run_compare.tail_ratios(
        intervals,
        run_compare.DEFAULT_MARGIN,
        run_compare.tail_level(1 - confidence, len(intervals)),
        2 * run_compare.SAME,
    )
    stalls = any(tail.shown and tail.ratio > 1 for tail in tails)
    slower, faster = interval.low > 1 + least or stalls, interval.high < 1 - least
    outcome = GateOutcome.REGRESSION if slower else GateOutcome.FASTER if faster else GateOutcome.NOT_SHOWN
    notes = [] if slower or faster else [f"at most {max(0.0, interval.high - 1):.1%} slower"]
    notes += [wording.tails(tails)] if tails and (stalls or not (slower or faster)) else []
    notes += [f"some rounds failed: {failure}"] if failure else []
    return msgspec.structs.replace(
        row,
        outcome=outcome,
        rounds=rounds,
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        tails=tuple(tails),
        note="; ".join(notes),
    )


def next_step(standings: Mapping[int, PositionStanding], count: int) -> tuple[int, int, int | BisectionEnd]:
    """The last good and the first slower position so far, and the next to compare with the first, or why it ends.

    From those that are known of `count` in order.
    The last is compared first: without a difference there is nothing to look for. Then the middle one between the last
    good and the first slower position, or of those the nearest to it that is not known yet.
    """
    last = count - 1
    if last not in standings:
        return 0, last, last
    if standings[last] is not PositionStanding.SLOWER:
        measurable = standings[last] is not PositionStanding.SKIPPED
        end = BisectionEnd.NO_DIFFERENCE if measurable else BisectionEnd.NOT_MEASURABLE
        return 0, last, end
    slower = min(position for position, standing in standings.items() if standing is PositionStanding.SLOWER)
    goods = [0, *(position for position, standing in standings.items() if standing is PositionStanding.GOOD)]
    if max(goods) > slower:
        return max(goods), slower, BisectionEnd.NOT_MONOTONE
    good = max(goods)
    open_positions = [position for position in range(good + 1, slower) if position not in standings]
    if open_positions:
        middle = (good + slower) / 2
        return good, slower, min(open_positions, key=lambda position: abs(position - middle))
    return good, slower, BisectionEnd.FOUND if slower == good + 1 else BisectionEnd.RANGE


def run_bisection(
    sources: Sequence[PairSource],
    libraries: Sequence[str | None],
    settings: configs.MeasureConfig,
    *,
    least: float,
    device: str,
    folder: Path,
    progress: Progress,
    model: str = "",
) -> BisectionReport:
    """Compare artifacts with the first, in pairs, until `next_step` says why it ends; the step that it found is then
    measured alone. What earlier bisections stored is known from the beginning.

    The way goes from the first artifact with the first library to the last with the last: artifacts first. Raises
    ConfigError for a source without the model or with several, for a list of one, and for several devices.
    """
    ways = [replace(source, library=libraries[0]) for source in sources]
    ways += [replace(sources[-1], library=library) for library in libraries[1:]]
    if len(ways) < 2:
        raise ConfigError(
            "there is nothing to bisect",
            where=str(sources[0].path),
            why="it needs a good end and a slower one",
            remedy="name two or more artifacts, or two or more libraries with --library, in their order",
        )
    names = tuple(" with ".join(filter(None, (str(way.path), way.library))) for way in ways)
    runs = [_only_run(way, model) for way in ways]
    require_unchanged(runs)
    with job_bench.open_bench(job_bench.opened((device,)), folder, progress) as bench:
        if len(bench.devices) > 1:
            raise ConfigError(
                f"{len(bench.devices)} devices are meant",
                where=device,
                why="a bisection runs on one",
                remedy=f"name one of them with --device: {', '.join(bench.devices)}",
            )
        (device,) = bench.devices

        def plan(base: int, candidate: int) -> list[PlannedPair]:
            pair = (runs[base], ways[base]), (runs[candidate], ways[candidate])
            return list(planned_pairs([(device, pair)], bench))

        def is_stored(position: int) -> bool:
            campaign = plan_pairs(plan(0, position), settings, bench)
            return not campaign.planned_runs or not campaign_measure.runs_left(campaign, bench.store).total()

        rows: dict[int, GatedRun] = {}
        standings: dict[int, PositionStanding] = {}
        good, slower, step = next_step(standings, len(ways))
        while not isinstance(step, BisectionEnd):
            stored = [] if standings else [position for position in range(1, step) if is_stored(position)]
            for position in dict.fromkeys([step, *stored]):
                ((rows[position],), _, _) = measure_pairs(plan(0, position), settings, least, bench)
                standings[position] = _standing(rows[position], rows[len(ways) - 1], least)
            good, slower, step = next_step(standings, len(ways))
        direct = rows.get(slower) if good == 0 else None
        if step is BisectionEnd.FOUND and good:
            ((direct,), _, _) = measure_pairs(plan(good, slower), settings, least, bench)
    return BisectionReport(
        device=device,
        positions=names,
        end=step,
        good=names[good],
        slower=names[slower],
        rows=tuple(
            BisectionRow(
                position=position,
                name=names[position],
                standing=standings[position],
                ratio=row.ratio,
                low=row.low,
                high=row.high,
                rounds=row.rounds,
                note=row.note,
            )
            for position, row in sorted(rows.items())
        ),
        step=direct,
    )


def _only_run(source: PairSource, model: str) -> campaign_planned.PlannedRun:
    """The only run of a source, or that of the model: what ships first, else the first planned run."""
    runs = [run for run in (source.shipped or source.planned).values() if model in ("", run.model)]
    if len({run.model for run in runs}) != 1:
        raise ConfigError(
            f"there is no model {model!r}" if model else "there are several models",
            where=str(source.path),
            why=f"it has {', '.join(dict.fromkeys(run.model for run in source.by_run.values())) or 'none'}",
            remedy="name one of them with --model",
        )
    return runs[0]


def _standing(row: GatedRun, end: GatedRun, least: float) -> PositionStanding:
    """Slower as a gate says it; good where at most half of the whole slowdown is possible, for the end none."""
    if row.outcome is GateOutcome.REGRESSION:
        return PositionStanding.SLOWER
    if row.outcome is GateOutcome.UNCHANGED:
        return PositionStanding.GOOD
    if row.ratio is None or row.high is None:
        return PositionStanding.SKIPPED
    limit = 1 + least if row is end else (end.ratio or 1.0) ** 0.5
    return PositionStanding.GOOD if row.high < limit else PositionStanding.UNDECIDED
