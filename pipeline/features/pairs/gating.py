"""A gate: the pairs of base and candidate that are asked for, measured where devices are ready, with a verdict each."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from pipeline import config as configs
from pipeline.core.progress import Progress
from pipeline.features.pairs.history import History
from pipeline.features.pairs.pairing import in_common, require_unchanged, suspected
from pipeline.features.pairs.report import ALARMS, GatedRun, GateOutcome, GateReport
from pipeline.features.pairs.rounds import measure_pairs, planned_pairs, unmeasured_row
from pipeline.features.pairs.sources import PairSource
from pipeline.job import bench as job_bench


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
    pairing = in_common(base, candidate) if histories is None else suspected(histories, base, candidate)
    report = GateReport(
        base=str(base.path),
        candidate=str(candidate.path),
        least=least,
        confidence=1 - ALARMS,
        rows=(*pairing.unmatched, *_not_suspected(histories or ())),
        only_base=pairing.only_base,
        only_candidate=pairing.only_candidate,
        histories=tuple(histories or ()),
    )
    if not pairing.pairs:
        return report
    require_unchanged(side.run for pair in pairing.pairs for side in pair.sides)
    names = devices or pairing.devices or ("local",)
    with job_bench.open_bench(job_bench.opened(names, wait_seconds), folder, progress) as bench:
        by_device = pairing.on(bench.devices)
        ready = [asked for asked in by_device if asked.device in bench.devices]
        measured = measure_pairs(list(planned_pairs(ready, settings, bench)), settings, least, bench)
    reasons = {skipped.device: skipped.text for skipped in bench.unusable}
    # A suspicion on a device that is not ready is neither confirmed nor refuted.
    away = tuple(
        unmeasured_row(asked, reasons.get(asked.device, "the device was not asked for"))
        for asked in by_device
        if asked.device not in bench.devices
    )
    warnings = (
        *(f"{skipped.device}: {skipped.text}" for skipped in bench.unusable),
        *(f"{device} was left before the end: {reason}" for device, reason in measured.left.items()),
    )
    return msgspec.structs.replace(
        report, rows=(*measured.rows, *away, *report.rows), measured_at=measured.measured_at, warnings=warnings
    )


def _not_suspected(histories: Iterable[History]) -> Iterator[GatedRun]:
    """The rows of what is not measured, as its history shows nothing."""
    for history in histories:
        if not history.suspicion:
            yield GatedRun(
                device=history.device,
                model=history.model,
                base=history.run,
                candidate=history.run,
                outcome=GateOutcome.NOT_SUSPECTED,
                note=history.note,
            )
