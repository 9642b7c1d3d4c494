"""What searches for the best configuration found: tune.json, and the tables of every report."""

from collections.abc import Iterable, Iterator

from pipeline.campaign import tuned as campaign_tuned
from pipeline.report import model as report_model
from pipeline.report import wording

MOST_CANDIDATES = 25
"""Measured candidates that a table shows: tune.json has all."""

NO_GAIN = "it is the default"

DEFAULTS = {"documentation": "the documentation's default", "onnxruntime": "ONNX Runtime's default"}


def listings(report: report_model.CampaignReport, brief: bool) -> Iterator[wording.Listing]:
    """The tables of a campaign that was searched, what decides first.

    In brief those that fit a terminal: why candidates were dropped in place of all candidates.
    """
    if not report.tuned:
        return
    answers = report.tuned.answers
    originals = {model.name: model.size_bytes for model in report.models}
    yield wording.Listing(  # the winner of each search beside the defaults, or why there is none
        title="Best configuration",
        head=("Device", "Model", "Goal", "Outcome", "Variant", "Run", "Value", "Against the defaults"),
        rows=tuple(
            (
                answer.search.device,
                answer.search.model,
                ", ".join(answer.search.goals),
                f"{answer.search.outcome.value}: {answer.search.reason}",
                answer.variant or wording.DASH,
                answer.run or wording.DASH,
                values_text(answer.values, answer.search.goals) if answer.variant else wording.DASH,
                "; ".join(_gains(answer.gains)) or (NO_GAIN if answer.variant else wording.DASH),
            )
            for answer in answers
        ),
    )
    yield wording.Listing(  # configurations that no other beats in all goals
        title="Pareto front",
        head=("Device", "Model", "Variant", "Run", "Latency", "p90", "First run", "Memory", "Size"),
        rows=tuple(
            (
                answer.search.device,
                answer.search.model,
                point.variant,
                point.run,
                *map(wording.duration, (point.values.latency_ns, point.values.p90_ns, point.values.first_run_ns)),
                wording.size(int(point.values.memory_bytes or 0)),
                wording.size_beside(int(point.values.size_bytes or 0), originals.get(answer.search.model, 0)),
            )
            for answer in answers
            for point in answer.front
        ),
    )
    many = len({answer.search.device for answer in answers}) > 1
    yield wording.Listing(  # what each class of devices runs; without a table where there is one device only
        title="Configurations by class of devices",
        head=("Model", "Classes", "Devices", "Variant", "Run", "Costs at most"),
        rows=tuple(
            (
                choice.model,
                "; ".join(tuned_class.text for tuned_class in choice.classes),
                ", ".join(choice.devices),
                choice.variant,
                choice.run,
                wording.DASH if choice.cost is None else f"{max(choice.cost, 0.0):.1%}",
            )
            for choice in (report.tuned.choices if many else ())
        ),
    )
    yield wording.Listing(  # what it costs a device to run another's winner
        title="Sharing a configuration",
        head=("Device", "Model", "Winner of", "Variant", "Run", "Relative to its own winner"),
        rows=tuple(
            (
                cost.device,
                cost.model,
                cost.winner_of,
                cost.variant,
                cost.run,
                ratio_text(cost.ratio, cost.low, cost.high),
            )
            for cost in report.tuned.costs
        ),
    )
    yield from map(_reasons if brief else _fates, answers)


def _gains(gains: Iterable[campaign_tuned.Gain]) -> Iterator[str]:
    """`latency 0.83 (0.79 to 0.88) of ONNX Runtime's default`; equal defaults once."""
    same: dict[tuple[str, str, str], list[campaign_tuned.Gain]] = {}
    for gain in gains:
        same.setdefault((gain.goal, gain.variant, gain.run), []).append(gain)
    for (goal, variant, run), equal in same.items():
        gain, names = equal[0], " and ".join(DEFAULTS[gain.than] for gain in equal)
        yield f"{goal} {ratio_text(gain.ratio, gain.low, gain.high)} of {names} ({variant}/{run})"


def ratio_text(ratio: float, low: float | None, high: float | None) -> str:
    """A ratio with its 95 % interval, where it has one."""
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def values_text(values: campaign_tuned.CandidateValues, goals: Iterable[str]) -> str:
    """The values of the goals, in their order."""
    texts = {
        "latency": wording.duration(values.latency_ns),
        "p90": f"p90 {wording.duration(values.p90_ns)}",
        "memory": wording.size(int(values.memory_bytes or 0)),
        "private-memory": f"private {wording.size(int(values.private_bytes or 0))}",
        "size": wording.size(int(values.size_bytes or 0)),
        "sustained": f"at the end {wording.duration(values.sustained_ns)}"
        if values.sustained_ns
        else wording.duration(values.latency_ns),
    }
    return ", ".join(texts[goal] for goal in goals if goal in texts)


def _fates(answer: campaign_tuned.TuneAnswer) -> wording.Listing:
    """The measured candidates of a search, those that ran most first, and how many others were left out for what."""
    search = answer.search
    measured = sorted(
        (candidate for candidate in search.candidates if candidate.processes),
        key=lambda candidate: -candidate.processes,
    )
    rows = [
        (
            candidate.variant,
            candidate.run,
            str(candidate.processes),
            values_text(candidate.values, search.goals),
            candidate.dropped.text if candidate.dropped else "winner",
        )
        for candidate in measured[:MOST_CANDIDATES]
    ]
    rest = [*measured[MOST_CANDIDATES:], *(candidate for candidate in search.candidates if not candidate.processes)]
    rows += [(f"{number} others", "", "", "", reason) for reason, number in counted_reasons(rest)]
    return wording.Listing(
        title=f"Candidates of {search.model} on {search.device}",
        head=("Variant", "Run", "Processes", "Value", "When and why it was dropped"),
        rows=tuple(rows),
    )


def _reasons(answer: campaign_tuned.TuneAnswer) -> wording.Listing:
    """Why candidates were dropped, with how many."""
    dropped = [candidate for candidate in answer.search.candidates if candidate.dropped]
    return wording.Listing(
        title=f"Candidates of {answer.search.model} on {answer.search.device} that were dropped",
        head=("Number", "When and why"),
        rows=tuple((str(number), reason) for reason, number in counted_reasons(dropped)),
    )


def counted_reasons(candidates: Iterable[campaign_tuned.TunedCandidate]) -> list[tuple[str, int]]:
    """Reasons without what is of single candidates, the most frequent first; shares above the leader as a span."""
    same: dict[str, list[tuple[float, float] | None]] = {}
    for candidate in candidates:
        why = candidate.dropped or campaign_tuned.Dropped(reason="")
        same.setdefault(why.reason, []).append(why.above)
    counted = []
    for reason, spans in same.items():
        bounds = [bound for span in spans if span for bound in span]
        widest = (min(bounds), max(bounds)) if bounds else None
        counted.append((campaign_tuned.Dropped(reason=reason, above=widest).text, len(spans)))
    return sorted(counted, key=lambda pair: -pair[1])
