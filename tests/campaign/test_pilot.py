"""What a pilot says: noise and time from its runs, and the rounds that simulation finds to be enough."""

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from device_runner.result import RunResult, Status
from device_runner.spec import RunSpec
from pipeline.campaign.pilot import PilotAnswer, pilot_answer, seconds_a_run
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import ratio_interval
from pipeline.report.pilot import pilot_listing, pilot_notes, spell


def records(sd: float, seed: int, rounds: int = 5, seconds: float = 1.5) -> tuple[list[RunRecord], list[RunRecord]]:
    """Runs of a baseline and its twin, one after the other, with this standard deviation between processes."""
    draw = random.Random(seed)
    made: tuple[list[RunRecord], list[RunRecord]] = ([], [])
    for number in range(2 * rounds):
        begun = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds * number)
        result = RunResult(
            spec_id="x", device="d", status=Status.OK, started_at=begun.isoformat(timespec="milliseconds"),
            latencies_ns=(round(1e7 * draw.lognormvariate(0, sd)),) * 20,
        )  # fmt: skip
        made[number % 2].append(
            RunRecord(
                campaign="c",
                planned="p",
                round=number // 2,
                model="m",
                variant="v",
                spec=RunSpec(id="x", model="m"),
                result=result,
            )
        )
    return made


def answer(sd: float, seed: int = 0, rounds: int = 5, **more: float) -> PilotAnswer | None:
    first, again = records(sd, seed, rounds)
    return pilot_answer(first, again, run="cpu", runs_in_round=4, planned_rounds=5, **more)  # type: ignore[arg-type]


def test_noise_and_time_are_those_of_the_runs() -> None:
    found = [one for seed in range(200) if (one := answer(0.01, seed))]
    assert len(found) == 200
    assert np.median([one.noise for one in found]) == pytest.approx(0.01 * 2**0.5, rel=0.15)
    assert {one.run_seconds for one in found} == {1.5}
    assert found[0].minute_rounds == 20
    assert found[0].planned_seconds == 30.0


def test_sustained_runs_are_in_the_time_of_the_campaign() -> None:
    found = answer(0.01, lasting_seconds=600.0)
    assert found is not None
    assert found.planned_seconds == 630.0
    assert all(one.campaign_seconds and one.campaign_seconds > 600 for one in found.needed)


def test_more_noise_or_a_smaller_difference_needs_more_rounds() -> None:
    quiet, loud = answer(0.005), answer(0.02)
    assert quiet is not None
    assert loud is not None
    rounds = [one.rounds for one in quiet.needed if one.rounds]
    assert rounds == sorted(rounds, reverse=True)
    assert all((b.rounds or 10**6) > (a.rounds or 0) for a, b in zip(quiet.needed, loud.needed, strict=True))


def test_the_rounds_that_it_names_find_the_difference() -> None:
    """With the true noise: at least 85 of 100 campaigns of so many rounds show 3 %."""
    found = answer(0.01, 3)
    assert found is not None
    sd = 0.01 * 2**0.5
    from pipeline.campaign.statistics import rounds_needed

    rounds = rounds_needed(sd, 0.03)
    assert rounds is not None
    generator = np.random.default_rng(5)
    shown = 0
    for _ in range(300):
        interval = ratio_interval(generator.normal(np.log(1.03), sd, rounds), 0.99)
        shown += interval is not None and interval.low > 1
    assert shown >= 255


@pytest.mark.parametrize("rounds", [0, 3])
def test_too_few_rounds_give_no_answer(rounds: int) -> None:
    assert answer(0.01, rounds=rounds) is None


def test_runs_that_do_not_say_when_they_began_have_no_time() -> None:
    assert seconds_a_run([RunResult(spec_id="x", device="d", status=Status.OK)] * 3) == 0.0


def test_what_is_said_is_readable() -> None:
    found = answer(0.2, percents=(1, 5))  # type: ignore[arg-type]
    assert found is not None
    listing = pilot_listing(found)
    assert listing.title.startswith("m on d: v cpu against itself in 5 rounds: median ")
    assert [row[0] for row in listing.rows] == ["1 %", "5 %"]
    (known, missing) = pilot_notes([found], ["d: m: it failed"])
    assert "60 s for two variants are 20 rounds, which find" in known.notes[0].text
    assert missing.notes[0].text == "d: m: it failed"
    assert [spell(value) for value in (None, 99.4, 100.0, 5999.0, 7200.0)] == ["-", "99 s", "2 min", "100 min", "2.0 h"]
