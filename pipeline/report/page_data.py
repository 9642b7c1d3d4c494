"""What the page's script draws: rows and runs as columns, raw latencies, gzipped and in base64. Pure functions."""

import base64
import gzip
from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from device_runner.result import Status, Struct
from pipeline.campaign.record import RunRecord
from pipeline.report import wording
from pipeline.report.charts import RowKey
from pipeline.report.model import CampaignReport, Row
from pipeline.report.rows import MeasuredRow

MOST_SAMPLES = 100_000
"""Raw latencies within the page, some 300 KB: results.sqlite has those of larger campaigns."""


class RowColumns(Struct, frozen=True, kw_only=True):
    """Rows of the report as columns; names are places in `PageData.names`, times nanoseconds, ratios thousandths.

    `quantiles` have three digits: enough for a drawing.
    """

    device: list[int]
    model: list[int]
    variant: list[int]
    run: list[int]
    verdict: list[int]
    outputs: list[int]
    median: list[int | None]
    p90: list[int | None]
    ratio: list[int | None]
    low: list[int | None]
    high: list[int | None]
    load: list[int]
    memory: list[int]
    size: list[int]
    quantiles: list[list[int]]


class RunsAsColumns(Struct, frozen=True, kw_only=True):
    """Timed runs as columns; `row` is a place in the rows, `at` milliseconds since the first run, `celsius` tenths.

    Temperature (of the battery, else of the hottest thermal zone) and frequency (of the fastest core) are those before
    the run, None where the device does not say.
    """

    row: list[int]
    round: list[int]
    at: list[int]
    median: list[int]
    celsius: list[int | None]
    mhz: list[int | None]
    thermal: list[int | None]
    samples: list[int]


class PageData(Struct, frozen=True, kw_only=True):
    """Everything that the script knows; `raw` says whether latencies are in the page, too."""

    started: str
    names: list[str]
    rows: RowColumns
    runs: RunsAsColumns
    raw: bool


def timed(measured: Sequence[MeasuredRow]) -> Iterator[tuple[RowKey, RunRecord]]:
    """Every run that gave times, with the key of its row."""
    for one in measured:
        for run in one.runs:
            if run.result.status is Status.OK and run.result.latencies_ns:
                yield (one.device, one.model, one.variant, one.run), run


def latencies(measured: Sequence[MeasuredRow]) -> dict[RowKey, list[int]]:
    """All latencies of each row, ascending."""
    found: dict[RowKey, list[int]] = {}
    for key, run in timed(measured):
        found.setdefault(key, []).extend(run.result.latencies_ns)
    return {key: sorted(values) for key, values in found.items()}


def page_data(report: CampaignReport, measured: Sequence[MeasuredRow]) -> tuple[str, str]:
    """The columns, and the raw latencies as 32 bit numbers in the order of the runs ("" where there are too many).

    Both are base64 of gzip. Latencies over 4.29 s are written as the largest number that fits.
    """
    runs = list(timed(measured))
    total = sum(len(run.result.latencies_ns) for _, run in runs)
    raw = 0 < total <= MOST_SAMPLES
    names: dict[str, int] = {}
    places = {(row.device, row.model, row.variant, row.run): place for place, row in enumerate(report.rows)}
    kept = [(key, run) for key, run in runs if key in places]
    starts = [_milliseconds(run.result.started_at) for _, run in kept]
    first = min((start for start in starts if start), default=0)
    before = [run.result.before for _, run in kept]
    heat = [
        max(one.zones_celsius.values(), default=None) if one.battery_celsius is None else one.battery_celsius
        for one in before
    ]
    data = PageData(
        started=min((run.result.started_at for _, run in kept if run.result.started_at), default=""),
        rows=_row_columns(report.rows, names),
        names=list(names),
        runs=RunsAsColumns(
            row=[places[key] for key, _ in kept],
            round=[run.round for _, run in kept],
            at=[max(0, start - first) for start in starts],
            median=[run.result.median_ns or 0 for _, run in kept],
            celsius=[None if one is None else round(10 * one) for one in heat],
            mhz=[max(one.cpu_mhz, default=None) for one in before],
            thermal=[one.thermal_status for one in before],
            samples=[len(run.result.latencies_ns) for _, run in kept],
        ),
        raw=raw,
    )
    numbers = array("I", (min(ns, 2**32 - 1) for _, run in kept for ns in run.result.latencies_ns)) if raw else None
    return _packed(msgspec.json.encode(data)), _packed(numbers.tobytes()) if numbers else ""


def _row_columns(rows: Sequence[Row], names: dict[str, int]) -> RowColumns:
    """The rows; texts become places in `names`, which grows."""

    def named(text: str) -> int:
        return names.setdefault(wording.visible(text), len(names))

    compared = [row.comparison for row in rows]
    return RowColumns(
        device=[named(row.device) for row in rows],
        model=[named(row.model) for row in rows],
        variant=[named(row.variant) for row in rows],
        run=[named(row.run) for row in rows],
        verdict=[named(wording.verdict(row)) for row in rows],
        outputs=[named(wording.outputs(row.checks)) for row in rows],
        median=[round(row.statistics.median_ns) if row.statistics else None for row in rows],
        p90=[row.statistics.p90_ns if row.statistics else None for row in rows],
        ratio=[_thousandths(c.ratio if c else None) for c in compared],
        low=[_thousandths(c.low if c else None) for c in compared],
        high=[_thousandths(c.high if c else None) for c in compared],
        load=[row.load_ns for row in rows],
        memory=[row.memory_peak_bytes for row in rows],
        size=[row.size_bytes for row in rows],
        quantiles=[[int(float(f"{ns:.3g}")) for ns in row.shape.latencies_ns] for row in rows],
    )


def _thousandths(ratio: float | None) -> int | None:
    return None if ratio is None else round(1000 * ratio)


def _milliseconds(instant: str) -> int:
    try:
        return round(datetime.fromisoformat(instant).timestamp() * 1000)
    except ValueError:
        return 0


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode("ascii")
