"""The least private memory with which a file runs, found by halving: a run without a limit does not tell it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from device_runner import device as runner_device
from device_runner import result as run_result
from device_runner import spec as run_spec
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import run_options
from pipeline.features.perf import failed as perf_failed

if TYPE_CHECKING:
    from pipeline.report import wording

STEP = 0.03
"""How far the limit that passed and the one that did not are apart at the end, as a share of the former."""

GROWTH, MOST_GROWTH = 1.25, 8.0
"""The peak of a run is no limit that passes in any case, as what is reserved and not used counts, too: it is raised in
steps, up to so many times.
"""

LEAST_TIMEOUT_SECONDS, SLOWER = 10.0, 10
"""A session that gets no memory for its threads may hang: a limited run has so many times the seconds of the first."""


TOO_LITTLE = (run_result.FailureKind.OUT_OF_MEMORY, run_result.FailureKind.TIMEOUT)
"""What a limit that is too low ends with."""


class LeastMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A file that ran within `fits_bytes` of private memory, not within `too_few_bytes`; its peak without a limit."""

    file: str
    run: str
    fits_bytes: int = 0
    too_few_bytes: int = 0
    peak_bytes: int = 0
    failure: str = ""
    remedy: str = ""


def measure_least_memory(
    runs: Sequence[campaign_planned.PlannedRun],
    plan: campaign_measure.CampaignPlan,
    bench: campaign_measure.Bench,
) -> list[LeastMemoryRow]:
    """The least limit of each file with its options, by some seven runs of one inference."""
    rows = []
    with bench.progress.stage("least memory", len(runs)) as stage:
        for run in runs:
            stage.at(run.variant)
            spec = msgspec.structs.replace(plan.spec(run, 0), min_runs=1, min_seconds=0.0, warmup=0, data_limit_bytes=0)
            row = LeastMemoryRow(file=run.variant, run=run_options.options_name(run.options))
            rows.append(measured(row, bench.devices[run.device], spec))
            stage.done()
    return rows


def measured(row: LeastMemoryRow, device: runner_device.Device, spec: run_spec.RunSpec) -> LeastMemoryRow:
    """The row with the least limit under which a spec runs on a device, or with why it runs under none."""
    free = device.run(spec)
    if free.status is not run_result.Status.OK:
        return msgspec.structs.replace(row, **perf_failed.why_failed(free.failure, "it did not run"))
    seconds = max(LEAST_TIMEOUT_SECONDS, SLOWER * free.elapsed_ns / 1e9)

    def limited(limit: int) -> run_result.RunResult:
        return device.run(
            msgspec.structs.replace(spec, data_limit_bytes=limit, timeout_seconds=min(seconds, spec.timeout_seconds))
        )

    low, high = 0, free.memory_peak_bytes
    result = limited(high)
    while result.status is not run_result.Status.OK:
        is_too_little = result.failure and result.failure.code in TOO_LITTLE
        if not is_too_little or high > MOST_GROWTH * free.memory_peak_bytes:
            return msgspec.structs.replace(row, **perf_failed.why_failed(result.failure, "it did not run"))
        low, high = high, round(high * GROWTH)
        result = limited(high)
    while high - low > STEP * high:
        middle = (low + high) // 2
        low, high = (low, middle) if limited(middle).status is run_result.Status.OK else (middle, high)
    return msgspec.structs.replace(row, fits_bytes=high, too_few_bytes=low, peak_bytes=free.memory_peak_bytes)


def least_memory_parts(rows: Sequence[LeastMemoryRow]) -> "Iterator[wording.Part]":
    """A table of the rows."""
    from pipeline.report import wording

    def size(count: int) -> str:
        return f"{count / 1e6:.3g} MB" if count else wording.DASH

    table = tuple(
        (row.file, row.run, size(row.fits_bytes), size(row.too_few_bytes), size(row.peak_bytes)) for row in rows
    )
    if table:
        head = ("file", "run", "fits into", "does not fit into", "peak without a limit")
        yield wording.Listing(title="Private memory", head=head, rows=table, right=head[2:])
