"""What searches for the best configuration found: tune.json, and the tables of every report."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pipeline.campaign.tuned import (
    CandidateValues,
    ClassChoice,
    Gain,
    TuneAnswer,
    TunedCandidate,
    TuneReport,
)
from pipeline.config import null_last
from pipeline.report import wording
from pipeline.report.layout import Listing

FILE_NAME = "tune.json"
MOST_CANDIDATES = 25
"""Measured candidates that a table shows: tune.json has all."""

NO_GAIN = "it is the default"

PERCENT = re.compile(r"[+-]\d+\.\d%")
"""What the search says of a single candidate, beside its leader."""

DEFAULTS = {"documentation": "the documentation's default", "onnxruntime": "ONNX Runtime's default"}


def encode(report: TuneReport) -> bytes:
    """The bytes of tune.json."""
    return msgspec.json.format(msgspec.json.encode(report, order="deterministic"), indent=2) + b"\n"


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the document, from the types and their docstrings."""
    made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(TuneReport)))
    for definition in made["$defs"].values():
        definition["description"] = inspect.cleandoc(definition.get("description", ""))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tune.json of ort-mobile"}
    return {**head, **null_last(made)}


def listings(report: TuneReport) -> tuple[Listing, ...]:
    """All tables, what decides first; empty ones left out."""
    made = (_answers(report), _fronts(report), _classes(report), _costs(report), *map(_fates, report.answers))
    return tuple(listing for listing in made if listing.rows)


def summary(report: TuneReport) -> tuple[Listing, ...]:
    """The tables that fit a terminal: what was found, and why the rest was dropped."""
    made = (_answers(report), _fronts(report), _classes(report), _costs(report), *map(_reasons, report.answers))
    return tuple(listing for listing in made if listing.rows)


def _answers(report: TuneReport) -> Listing:
    """The winner of each search beside the defaults, or why there is none."""
    return Listing(
        title="Best configuration",
        head=("Device", "Model", "Goal", "Outcome", "Variant", "Run", "Value", "Against the defaults"),
        rows=tuple(
            (
                one.search.device, one.search.model, ", ".join(one.search.goals),
                f"{one.search.outcome.value}: {one.search.reason}", one.variant or wording.DASH,
                one.run or wording.DASH, values_text(one.values, one.search.goals) if one.variant else wording.DASH,
                "; ".join(_gains(one.gains)) or (NO_GAIN if one.variant else wording.DASH),
            )
            for one in report.answers
        ),
    )  # fmt: skip


def _gains(gains: Iterable[Gain]) -> Iterator[str]:
    """`latency 0.83 (0.79 to 0.88) of ONNX Runtime's default`; equal defaults once."""
    same: dict[tuple[str, str, str], list[Gain]] = {}
    for gain in gains:
        same.setdefault((gain.goal, gain.variant, gain.run), []).append(gain)
    for (goal, variant, run), found in same.items():
        one, names = found[0], " and ".join(DEFAULTS[gain.than] for gain in found)
        yield f"{goal} {ratio_text(one.ratio, one.low, one.high)} of {names} ({variant}/{run})"


def ratio_text(ratio: float, low: float | None, high: float | None) -> str:
    """A ratio with its 95 % interval, where it has one."""
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def values_text(values: CandidateValues, goals: Iterable[str]) -> str:
    """The values of the goals, in their order."""
    texts = {
        "latency": wording.duration(values.latency_ns),
        "p90": f"p90 {wording.duration(values.p90_ns)}",
        "memory": wording.size(int(values.memory_bytes or 0)),
        "size": wording.size(int(values.size_bytes or 0)),
    }
    return ", ".join(texts[goal] for goal in goals if goal in texts)


def _fronts(report: TuneReport) -> Listing:
    """Configurations that no other beats in all goals."""
    return Listing(
        title="Pareto front",
        head=("Device", "Model", "Variant", "Run", "Latency", "p90", "Memory", "Size"),
        rows=tuple(
            (one.search.device, one.search.model, point.variant, point.run, *_cells(point.values))
            for one in report.answers
            for point in one.front
        ),
    )


def _cells(values: CandidateValues) -> tuple[str, str, str, str]:
    return (
        wording.duration(values.latency_ns),
        wording.duration(values.p90_ns),
        wording.size(int(values.memory_bytes or 0)),
        wording.size(int(values.size_bytes or 0)),
    )


def _classes(report: TuneReport) -> Listing:
    """What each class of devices runs; without a table where there is one device only."""
    many = len({one.search.device for one in report.answers}) > 1
    return Listing(
        title="Configurations by class of devices",
        head=("Model", "Classes", "Devices", "Variant", "Run", "Costs at most"),
        rows=tuple(map(_choice, report.choices if many else ())),
    )


def _choice(one: ClassChoice) -> tuple[str, ...]:
    cost = wording.DASH if one.cost is None else f"{max(one.cost, 0.0):.1%}"
    return (one.model, "; ".join(one.text for one in one.classes), ", ".join(one.devices), one.variant, one.run, cost)


def _costs(report: TuneReport) -> Listing:
    """What it costs a device to run another's winner."""
    return Listing(
        title="Sharing a configuration",
        head=("Device", "Model", "Winner of", "Variant", "Run", "Relative to its own winner"),
        rows=tuple(
            (one.device, one.model, one.winner_of, one.variant, one.run, ratio_text(one.ratio, one.low, one.high))
            for one in report.costs
        ),
    )


def _fates(answer: TuneAnswer) -> Listing:
    """The measured candidates of a search, those that ran most first, and how many others were left out for what."""
    search = answer.search
    measured = sorted((one for one in search.candidates if one.processes), key=lambda one: -one.processes)
    rows = [
        (one.variant, one.run, str(one.processes), values_text(one.values, search.goals), one.dropped or "winner")
        for one in measured[:MOST_CANDIDATES]
    ]
    rest = [*measured[MOST_CANDIDATES:], *(one for one in search.candidates if not one.processes)]
    rows += [(f"{number} others", "", "", "", reason) for reason, number in counted_reasons(rest)]
    return Listing(
        title=f"Candidates of {search.model} on {search.device}",
        head=("Variant", "Run", "Processes", "Value", "When and why it was dropped"),
        rows=tuple(rows),
    )


def _reasons(answer: TuneAnswer) -> Listing:
    """Why candidates were dropped, with how many."""
    dropped = [one for one in answer.search.candidates if one.dropped]
    return Listing(
        title=f"Candidates of {answer.search.model} on {answer.search.device} that were dropped",
        head=("Number", "When and why"),
        rows=tuple((str(number), reason) for reason, number in counted_reasons(dropped)),
    )


def counted_reasons(candidates: Iterable[TunedCandidate]) -> list[tuple[str, int]]:
    """Reasons without the names and numbers of single candidates, the most frequent first; percentages as a span."""
    same: dict[str, list[list[str]]] = {}
    for one in candidates:
        kind = _kind(one.dropped)
        same.setdefault(PERCENT.sub("\0", kind), []).append(PERCENT.findall(kind))
    counted = [(_with_spans(kind, shares), len(shares)) for kind, shares in same.items()]
    return sorted(counted, key=lambda row: -row[1])


def _with_spans(kind: str, shares: list[list[str]]) -> str:
    """A reason whose places of percentages are filled: a single one becomes a span, an interval the widest."""
    columns = list(zip(*shares, strict=True))
    if len(columns) == 1:
        low, high = (pick(columns[0], key=_share) for pick in (min, max))
        filled = [low if low == high else f"{low} to {high}"]
    else:
        filled = [(min if place % 2 == 0 else max)(column, key=_share) for place, column in enumerate(columns)]
    parts = kind.split("\0")
    return parts[0] + "".join(share + rest for share, rest in zip(filled, parts[1:], strict=True))


def _share(percentage: str) -> float:
    return float(percentage.rstrip("%"))


def _kind(reason: str) -> str:
    general = re.sub(r"; counts as .*", "", reason)
    general = re.sub(r"^(\w+) \S+ (is over max_)", r"\1 \2", general)
    general = re.sub(r" in round \d+ of the race: .*", " in the race: slower than the leader", general)
    general = re.sub(r"^measured (once|\d+ times), ", "measured, ", general)
    return re.sub(r"^not tried: .*?, the same", "not tried: another with the same", general)
