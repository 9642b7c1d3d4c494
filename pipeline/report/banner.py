"""Whether what a campaign made may ship, in one line with its reasons: the first thing that a report says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.check.output import OutputCheck
from pipeline.report.model import CampaignReport

MOST_REASONS = 5


class State(StrEnum):
    """What to do with it."""

    STOP = "stop"
    CAUTION = "caution"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """The verdict and what it rests on, each reason a sentence."""

    state: State
    headline: str
    reasons: tuple[str, ...] = ()


def banner(report: CampaignReport) -> Banner | None:
    """The verdict on a campaign: what forbids shipping before what is only to be known; None where nothing was made."""
    if stops := list(_stops(report)):
        return Banner(state=State.STOP, headline=f"Do not ship: {stops[0]}", reasons=_shown(stops[1:]))
    cautions = _shown(list(_cautions(report)))
    number = len({choice.file for choice in report.choices})
    files = f"{number} {'artifact' if number == 1 else 'artifacts'}"
    if not number:
        if not cautions or not report.models:  # `ort-mobile perf` has no models to choose among
            return None
        return Banner(state=State.CAUTION, headline="Nothing was chosen to ship", reasons=cautions)
    if cautions:
        return Banner(state=State.CAUTION, headline=f"Ready to ship with reservations: {files}", reasons=cautions)
    return Banner(state=State.READY, headline=f"Ready to ship: {files}")


def _shown(reasons: Sequence[str]) -> tuple[str, ...]:
    if len(reasons) <= MOST_REASONS:
        return tuple(reasons)
    return (*reasons[:MOST_REASONS], f"{len(reasons) - MOST_REASONS} more, below")


def _stops(report: CampaignReport) -> Iterator[str]:
    for proof in report.proofs:
        if proof.failed:
            yield f"the proof in {proof.library.file} failed: {'; '.join(proof.objections[:3])}"
    yield from (f"no bundle was made: {refusal}" for refusal in report.refusals)
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in report.withheld:
        reasons.setdefault((one.model, one.reason), []).append(one.target)
    for (model, reason), targets in reasons.items():
        yield f"nothing of {model} may ship to {', '.join(targets)}: {reason}"


def _cautions(report: CampaignReport) -> Iterator[str]:
    shipped = {(choice.model, choice.variant) for choice in report.choices}
    checks = {(one.model, one.variant): one.checks for one in report.checks}
    failed = [key for key, found in checks.items() if any(check.failed for check in found)]
    if failed:
        yield f"{_variants(len(failed))} failed the numeric check and {'is' if len(failed) == 1 else 'are'} left out"
    differing = [row for row in report.rows if any(check.failed for check in row.checks)]
    if differing:
        yield f"outputs differ in {len(differing)} of {len(report.rows)} rows measured on devices"
    unknown = {key: found for key, found in checks.items() if key in shipped and _undecided(found)}
    if unknown:
        random = any(check.random_inputs for found in unknown.values() for check in found)
        advice = "on random inputs: give test data" if random else "on this test data"
        yield f"outputs of {_variants(len(unknown))} that {_ship(len(unknown))} cannot be judged {advice}"
    if any(row.status.value == "failed" or row.failed_rounds for row in report.rows) or report.failures:
        yield f"{len(report.failures)} {'failure' if len(report.failures) == 1 else 'failures'}, listed below"
    yield from (f"not proven in {proof.library.file}: {proof.not_run}" for proof in report.proofs if proof.not_run)
    if unmeasured := [choice for choice in report.choices if choice.reason.startswith("not measured")]:
        number = len({choice.target for choice in unmeasured})
        yield f"nothing was measured on devices like {number} of {len({c.target for c in report.choices})} targets"


def _undecided(checks: Sequence[OutputCheck]) -> bool:
    return any(check.unknown for check in checks)


def _variants(number: int) -> str:
    return f"{number} {'variant' if number == 1 else 'variants'}"


def _ship(number: int) -> str:
    return "ships" if number == 1 else "ship"
