"""`nox -s simulations [-- --check]`: verdicts and intervals on simulated campaigns whose truth is known, by noise.

The tables go between the markers in docs/numbers.md; seeds are fixed, so the same code gives the same tables, and
`--check` says whether they are current. Everything comes from the functions that a report calls. A pair is a lane and
the baseline of one campaign; the same pairs with 3 % added to the lane's latency say how often that is found.
"""

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: the last bits of a sum depend on the threads

import numpy as np

from benchmarks.noise import INFERENCES, MODELS, Floats, NoiseModel, campaigns, yardsticks
from pipeline.campaign.statistics.compare import DEFAULT_RULE, LOOKS, DecisionRule, Verdict, decide
from pipeline.campaign.statistics.groups import (
    PairedRatios,
    Yardstick,
    noise,
    percentile_bounds,
    ratio_interval,
    rounds_needed,
)
from pipeline.features.pilot.job import PILOT_ROUNDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numbers.md"
SEED = 18
FIXED = (5, 8, 12, 20)
"""Rounds of campaigns that look once, at their end."""

SLOWER = 0.03
STALLED, STALL = 0.15, 3.0
"""The share of inferences that stall where threads wait for a core, and how many times as long those take."""
SHOWN = (Verdict.FASTER, Verdict.SLOWER, Verdict.MIXED)
MANY, MANY_ROUNDS = 40, 5
PERCENTILE_ROUNDS = (20, 40)
MOST_PLANNED = 300
"""Rounds that a minute has for two runs of 0.1 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """How many campaigns of each kind are simulated."""

    equal: int = 10_000
    slower: int = 2_000
    looks: int = 4_000
    many: int = 400
    percentiles: int = 2_000
    plans: int = 1_000


TRIALS = Trials()


@dataclass(slots=True, kw_only=True)
class Found:
    """Shares of campaigns, by rounds; what is not a share says so."""

    name: str
    held: dict[int, float] = field(default_factory=dict)
    """In which the 95 % interval holds the true ratio."""
    false: dict[int, float] = field(default_factory=dict)
    """In which equal lanes are called different; at 0 rounds: with looks."""
    slower: dict[int, float] = field(default_factory=dict)
    """In which 3 % is found; at 0 rounds: with looks."""
    stalled: dict[int, float] = field(default_factory=dict)
    """In which a lane is found whose inferences stall at times, as its median does not show."""
    stalled_same: dict[int, float] = field(default_factory=dict)
    """In which such a lane is called the same."""
    rounds_used: float = 0.0
    """With looks, on average, until 3 % is decided."""
    held_by_choosing: float = 0.0
    """The interval of the lane that looks best of 40 holds its true ratio, in the rounds that chose it."""
    held_again: float = 0.0
    """The same in fresh rounds."""
    false_of_many: float = 0.0
    """Any of 39 equal lanes is called different from their baseline."""
    percentile: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Rounds to how often an interval of the 90th percentile is given, and holds the true one where it is."""
    planned: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Rounds that a pilot names for 3 %: their median; how often it names more than MOST_PLANNED; else how often so
    many rounds find it."""


def ratios_of(values: Mapping[Yardstick, Floats], lane: int = 1) -> PairedRatios:
    """A lane beside the first, of values of one campaign by round and lane."""
    logs = {of: lanes[:, lane] - lanes[:, 0] for of, lanes in values.items()}
    numbers = tuple(range(len(logs[Yardstick.MEDIAN])))
    return PairedRatios(numbers=numbers, logs=logs.pop(Yardstick.MEDIAN), tails=logs)


def lanes_of(
    model: NoiseModel, seed: int, count: int, rounds: int, lanes: int | None = None, *, stalls: bool = False
) -> Iterator[Mapping[Yardstick, Floats]]:
    """What equal lanes are compared by, campaign after campaign; with `stalls` the last one's inferences are so."""
    random = np.random.default_rng(seed)
    for part in campaigns(model, random, count, rounds, lanes):
        if stalls:
            part[:, :, -1] *= np.where(random.random(part[:, :, -1].shape) < STALLED, STALL, 1.0)
        values = yardsticks(part)
        yield from ({of: logs[number] for of, logs in values.items()} for number in range(len(part)))


def pairs(
    model: NoiseModel, seed: int, count: int, rounds: int, factor: float = 1.0, *, stalls: bool = False
) -> Iterator[PairedRatios]:
    """The ratios of equal lanes, the second's times a factor, one value a round."""
    for values in lanes_of(model, seed, count, rounds, stalls=stalls):
        ratios = ratios_of(values)
        tails = {of: logs + math.log(factor) for of, logs in ratios.tails.items()}
        yield replace(ratios, logs=ratios.logs + math.log(factor), tails=tails)


def different(ratios: PairedRatios, rule: DecisionRule = DEFAULT_RULE) -> bool:
    """Whether the rule calls these rounds different."""
    return decide([ratios], rule)[0].verdict in SHOWN


def fixed(model: NoiseModel, found: Found, trials: Trials) -> None:
    """Coverage, false differences and power at each number of rounds."""
    for rounds in FIXED:
        held = false = 0
        for ratios in pairs(model, SEED + rounds, trials.equal, rounds):
            interval = ratio_interval(ratios.logs)
            held += interval is not None and interval.low <= 1 <= interval.high
            false += different(ratios)
        found.held[rounds], found.false[rounds] = held / trials.equal, false / trials.equal
        slower = pairs(model, SEED + 400 + rounds, trials.slower, rounds, 1 + SLOWER)
        found.slower[rounds] = sum(map(different, slower)) / trials.slower
        stalled = [
            decide([ratios], DEFAULT_RULE)[0].verdict
            for ratios in pairs(model, SEED + 600 + rounds, trials.slower, rounds, stalls=True)
        ]
        found.stalled[rounds] = sum(verdict in SHOWN for verdict in stalled) / trials.slower
        found.stalled_same[rounds] = stalled.count(Verdict.SAME) / trials.slower


def sequential(model: NoiseModel, found: Found, trials: Trials) -> None:
    """The same where measuring ends at the first look that decides."""
    rule = DecisionRule(looks=LOOKS)
    equal = pairs(model, SEED + 100, trials.looks, LOOKS[-1])
    found.false[0] = sum(different(ratios, rule) for ratios in equal) / trials.looks
    shown, used = 0, 0
    for ratios in pairs(model, SEED + 101, trials.slower, LOOKS[-1], 1 + SLOWER):
        ends = (look for look in LOOKS if decide([ratios.before(look)], rule)[0].settled)
        end = next(ends, LOOKS[-1])
        shown += different(ratios.before(end), rule)
        used += end
    found.slower[0], found.rounds_used = shown / trials.slower, used / trials.slower


def many(model: NoiseModel, found: Found, trials: Trials) -> None:
    """The best of 40 equal lanes, judged by the rounds that chose it and by fresh ones; and all against one."""
    chosen = again = false = 0
    first = lanes_of(model, SEED + 200, trials.many, MANY_ROUNDS, MANY)
    fresh = pairs(model, SEED + 201, trials.many, MANY_ROUNDS)
    for lanes, later in zip(first, fresh, strict=True):
        logs = lanes[Yardstick.MEDIAN]
        best = 1 + int(np.argmin(logs[:, 1:].mean(axis=0)))
        for values, counts in ((logs[:, best] - logs[:, 0], True), (later.logs, False)):
            interval = ratio_interval(values)
            holds = interval is not None and interval.low <= 1 <= interval.high
            chosen, again = chosen + (holds and counts), again + (holds and not counts)
        judged = decide([ratios_of(lanes, lane) for lane in range(1, MANY)], DEFAULT_RULE)
        false += any(judgement.verdict in SHOWN for judgement in judged)
    found.held_by_choosing, found.held_again = chosen / trials.many, again / trials.many
    found.false_of_many = false / trials.many


def percentiles(model: NoiseModel, found: Found, trials: Trials) -> None:
    """How often the true 90th percentile of a steady device lies in its interval."""
    if not model.steady:
        return
    large = campaigns(model, np.random.default_rng(SEED + 300), 5_000, 20, 1)
    true = float(np.quantile(np.concatenate([part.ravel() for part in large]), 0.9))
    for rounds in PERCENTILE_ROUNDS:
        given = held = 0
        for part in campaigns(model, np.random.default_rng(SEED + 301), trials.percentiles, rounds, 1):
            for latencies in np.sort(part.reshape(len(part), -1), axis=1):
                bounds = percentile_bounds(latencies, 0.9, rounds)
                given += bounds is not None
                held += bounds is not None and bounds[0] <= true <= bounds[1]
        found.percentile[rounds] = (given / trials.percentiles, held / max(1, given))


def plans(model: NoiseModel, found: Found, trials: Trials) -> None:
    """Pilots that say how many rounds find 3 %, and campaigns of so many rounds."""
    named, shown = [], 0
    pilots = pairs(model, SEED + 500, trials.plans, PILOT_ROUNDS)
    later = pairs(model, SEED + 501, trials.plans, MOST_PLANNED, 1 + SLOWER)
    for pilot, ratios in zip(pilots, later, strict=True):
        rounds = rounds_needed(noise(pilot.logs), SLOWER, DEFAULT_RULE.confidence, PILOT_ROUNDS) or math.inf
        named.append(rounds)
        shown += rounds <= MOST_PLANNED and different(ratios.before(int(rounds)))
    beyond = sum(rounds > MOST_PLANNED for rounds in named)
    found.planned = float(np.median(named)), beyond / trials.plans, shown / max(1, trials.plans - beyond)


def simulated(place: int, trials: Trials) -> Found:
    """Everything of one noise model."""
    found = Found(name=MODELS[place].name)
    for part in (fixed, sequential, many, percentiles, plans):
        part(MODELS[place], found, trials)
    return found


def table(trials: Trials = TRIALS) -> str:
    """One row a noise model, in per cent."""
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(simulated, range(len(MODELS)), [trials] * len(MODELS)))
    return "\n\n".join((_of_pairs(rows, trials), _of_plans(rows, trials), _of_choices(rows, trials)))


def _of_pairs(rows: list[Found], trials: Trials) -> str:
    columns = "/".join(map(str, FIXED))
    text = (
        f"{trials.equal:,} pairs of equal lanes and {trials.slower:,} of which one is 3 % slower, for each number of "
        f"rounds; {trials.looks:,} and {trials.slower:,} with looks. {INFERENCES} inferences a process. Stalls: of "
        f"one lane {STALLED:.0%} of the inferences take {STALL:g} times as long. In per cent."
    )
    head = (
        "noise", f"95 % interval holds the truth ({columns} rounds)", f"equal, called different ({columns}; looks)",
        f"3 % found ({columns}; looks)", "rounds until then", f"stalls found ({columns})",
        f"stalls called same ({columns})",
    )  # fmt: skip
    cells = [_pair_cells(row) for row in rows]
    false = [value for row in rows for value in row.false.values()]
    held = [value for row in rows for value in row.held.values()]
    last = (f"{100 * min(held):.1f} to {100 * max(held):.1f}",
            f"mean {100 * np.mean(false):.2f}, worst {100 * max(false):.2f}")  # fmt: skip
    return f"{text}\n\n{markdown(head, [*cells, ('all', *last, '', '', '', '')])}"


def _pair_cells(row: Found) -> tuple[str, ...]:
    held = " / ".join(f"{100 * row.held[n]:.1f}" for n in FIXED)
    false = " / ".join(f"{100 * row.false[n]:.2f}" for n in FIXED)
    slower = " / ".join(f"{100 * row.slower[n]:.0f}" for n in FIXED)
    looks = f"{100 * row.false[0]:.2f}", f"{100 * row.slower[0]:.1f}"
    stalled, same = (" / ".join(f"{100 * shares[n]:.0f}" for n in FIXED) for shares in (row.stalled, row.stalled_same))
    return row.name, held, f"{false}; {looks[0]}", f"{slower}; {looks[1]}", f"{row.rounds_used:.1f}", stalled, same


def _of_plans(rows: list[Found], trials: Trials) -> str:
    text = (
        f"{trials.plans:,} pilots of {PILOT_ROUNDS} rounds, as those of `ort-mobile run --plan`, each with a campaign "
        "of as many rounds as it names for 3 %."
    )
    head = ("noise", "rounds named, median", f"more than {MOST_PLANNED}", "3 % found in campaigns of the others")
    cells = [
        (row.name, f"{row.planned[0]:.0f}", f"{row.planned[1]:.1%}", f"{row.planned[2]:.1%}")
        for row in rows
    ]  # fmt: skip
    return f"{text}\n\n{markdown(head, cells)}"


def _of_choices(rows: list[Found], trials: Trials) -> str:
    rounds = " and ".join(map(str, PERCENTILE_ROUNDS))
    text = (
        f"{trials.many:,} campaigns of {MANY} equal lanes and {MANY_ROUNDS} rounds, and {trials.percentiles:,} lanes "
        f"of {rounds} rounds. In per cent."
    )
    head = (
        "noise", f"any of {MANY - 1} called different", "interval of the best holds the truth: rounds that chose it",
        "fresh rounds", f"p90 has an interval, and it holds the true one ({rounds} rounds)",
    )  # fmt: skip
    return f"{text}\n\n{markdown(head, [_choice_cells(row) for row in rows])}"


def _choice_cells(row: Found) -> tuple[str, ...]:
    p90 = " / ".join(f"{100 * given:.0f}, {100 * held:.1f}" for given, held in row.percentile.values())
    shares = f"{100 * row.false_of_many:.1f}", f"{100 * row.held_by_choosing:.0f}", f"{100 * row.held_again:.1f}"
    return row.name, *shares, p90 or "not steady"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> int:
    """Write the tables into the page; with --check, 1 where they are not current."""
    made = table()
    print(made)
    page = PAGE.read_text(encoding="utf-8")
    marked = re.compile("(?<=<!-- simulated: verdicts -->\n).*?(?=<!-- end of verdicts -->)", re.DOTALL)
    new, count = marked.subn(lambda _: f"\n{made}\n\n", page)
    if not count:
        raise SystemExit(f"{PAGE.name} has no markers for verdicts")
    if "--check" not in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        print(f"{PAGE.name} is not current: run `nox -s simulations`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
