"""What a pilot says: noise and time from its runs, and the rounds that simulation finds to be enough."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from device_runner.result import RunResult, Status
from device_runner.spec import RunSpec
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics.compare import LOOKS, DecisionRule, Verdict, decide
from pipeline.campaign.statistics.groups import Floats, PairedRatios
from pipeline.features.pilot.job import PilotAnswer, pilot_answer, pilot_listing, pilot_notes, seconds_a_run, spell
from tests.values import present


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


def answer(sd: float, seed: int = 0, rounds: int = 5, **more: Any) -> PilotAnswer | None:
    first, again = records(sd, seed, rounds)
    return pilot_answer(first, again, run="cpu", runs_in_round=4, planned_rounds=5, **more)


def test_noise_and_time_are_those_of_the_runs() -> None:
    found = [one for seed in range(200) if (one := answer(0.01, seed))]
    assert len(found) == 200
    assert np.median([one.noise for one in found]) == pytest.approx(0.01 * 2**0.5, rel=0.15)
    assert {one.run_seconds for one in found} == {1.5}
    assert found[0].minute_rounds == 20
    assert found[0].planned_seconds == 30.0


def test_sustained_runs_are_in_the_time_of_the_campaign() -> None:
    found = present(answer(0.01, lasting_seconds=600.0))
    assert found.planned_seconds == 630.0
    assert all(one.campaign_seconds and one.campaign_seconds > 600 for one in found.needed)


def test_the_rounds_that_it_names_find_the_difference() -> None:
    """In at least 95 of 100 pilots with their campaigns."""
    generator = np.random.default_rng(5)
    shown = 0
    for seed in range(300):
        found = present(answer(0.01, seed))
        (three,) = [one for one in found.needed if one.percent == 3.0]
        logs = generator.normal(np.log(1.03), 0.01 * 2**0.5, three.rounds)
        shown += compared(logs) is Verdict.SLOWER
    assert shown >= 0.94 * 300


def compared(logs: Floats) -> Verdict:
    """The verdict on a campaign with these log ratios."""
    return decide([PairedRatios(numbers=tuple(range(len(logs))), logs=logs)], DecisionRule())[0].verdict


def test_rounds_with_looks_find_less_and_are_planned_so() -> None:
    plain, looking = present(answer(0.02)), present(answer(0.02, rule=DecisionRule(looks=LOOKS)))
    assert all((b.rounds or 10**6) >= (a.rounds or 0) for a, b in zip(plain.needed, looking.needed, strict=True))
    assert (looking.minute_percent or 0) > (plain.minute_percent or 0)


@pytest.mark.parametrize("rounds", [0, 3])
def test_too_few_rounds_give_no_answer(rounds: int) -> None:
    assert answer(0.01, rounds=rounds) is None


def test_runs_that_do_not_say_when_they_began_have_no_time() -> None:
    assert seconds_a_run([RunResult(spec_id="x", device="d", status=Status.OK)] * 3) == 0.0


def test_what_is_said_is_readable() -> None:
    found = present(answer(0.2, percents=(1, 5)))
    listing = pilot_listing(found)
    assert listing.title.startswith("m on d: v cpu against itself in 5 rounds: median ")
    assert [row[0] for row in listing.rows] == ["1 %", "5 %"]
    (known, missing) = pilot_notes([found], ["d: m: it failed"])
    assert "60 s for two variants are 20 rounds, which find" in known.notes[0].text
    assert missing.notes[0].text == "d: m: it failed"
    assert [spell(value) for value in (None, 99.4, 100.0, 5999.0, 7200.0)] == ["-", "99 s", "2 min", "100 min", "2.0 h"]
