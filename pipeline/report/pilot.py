"""What a pilot says of a campaign to come, as tables for the terminal."""

from collections.abc import Iterator, Sequence

from pipeline.campaign.pilot import NeededRounds, PilotAnswer
from pipeline.report import wording
from pipeline.report.layout import Listing, ListingNote, Section

HEAD = ("Difference", "Rounds", "Two variants", "Whole campaign")


def pilot_listing(answer: PilotAnswer) -> Listing:
    """Rounds and time for each difference; the title says what was measured."""
    title = (
        f"{answer.model} on {answer.device}: {answer.variant} {answer.run} against itself in {answer.rounds} rounds: "
        f"median {wording.duration(answer.median_ns)}, noise {answer.noise:.1%}, {answer.run_seconds:.2g} s a run"
    )
    return Listing(title=title, head=HEAD, rows=tuple(map(_row, answer.needed)))


def _row(needed: NeededRounds) -> tuple[str, ...]:
    rounds = "over 10,000" if needed.rounds is None else str(needed.rounds)
    return f"{needed.percent:g} %", rounds, spell(needed.pair_seconds), spell(needed.campaign_seconds)


def spell(seconds: float | None) -> str:
    """Seconds as people say them: 45 s, 12 min, 3.5 h; a dash for what is not known."""
    if seconds is None:
        return wording.DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def pilot_notes(answers: Sequence[PilotAnswer], missing: Sequence[str]) -> tuple[Section, ...]:
    """What a minute for a pair and the config's own rounds find, and what gave no answer."""
    known = tuple(ListingNote(title=f"{one.model} on {one.device}", text="; ".join(_finds(one))) for one in answers)
    failed = tuple(ListingNote(title="", text=text) for text in missing)
    sections = (Section(title="What this finds", notes=known), Section(title="Without an answer", notes=failed))
    return tuple(section for section in sections if section.notes)


def _finds(one: PilotAnswer) -> Iterator[str]:
    yield f"60 s for two variants are {one.minute_rounds} rounds, which {_smallest(one.minute_percent)}"
    runs = "run" if one.runs_in_round == 1 else "runs"
    yield (
        f"the config's {one.planned_rounds} rounds of {one.runs_in_round} {runs} take {spell(one.planned_seconds)} and "
        f"{_smallest(one.planned_percent)}"
    )


def _smallest(percent: float | None) -> str:
    if percent is None:
        return "show no difference: fewer than 4 have no interval"
    return f"find {percent:.2g} % or more" if percent < 100 else "find no difference below 100 %"
