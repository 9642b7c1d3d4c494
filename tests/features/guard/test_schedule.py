"""A thousand faults: lives of phones with a bad driver each, as real processes, and what the guard promises of them.

Half of them are of an app with the helper, whose trials are processes of their own.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.features.guard.phones import App, Launch, Phone

pytestmark = pytest.mark.nightly

ENDING = ("abort", "segv", "ill", "bus", "fpe", "exit")
HANGING = ("hang", "spin")
WRONG = ("nan", "inf", "zeros", "half", "permuted", "reversed")
REFUSING = ("refuse", "java")
STAGES = ("options", "open", "first_run", "run", "close")
LAUNCHES = 5
PARTS = 4
"""Tests that run beside each other; those of two have the helper."""
LIMITS_MS = {True: 3_000, False: 20_000}
"""How long a driver may take before it hangs, by whether it does: on a busy computer a good one takes seconds."""

PATIENCE_MS = 20_000
"""What a user waits before ending an app that hangs, as Android's record has it; tests wait eight seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a phone's NNAPI driver, whether Android says why processes ended, and when users end them.

    `has_helper` is of the app.
    """

    kind: str
    stage: str
    has_reasons: bool
    impatient: bool
    has_helper: bool

    @property
    def word(self) -> str:
        """As the property of the app has it; "" for a driver that is good."""
        return f"nnapi:{self.kind}@{self.stage}" if self.kind else ""

    @property
    def most_crashes(self) -> int:
        """How often the app may die of it: once, and without reasons twice in use, where once may be anything.

        Never where the helper dies in its place: it does all but run a second time.
        """
        if self.kind not in ENDING or (self.has_helper and self.stage != "run"):
            return 0
        return 1 if self.has_reasons or self.stage not in ("run", "close") else 2


def faults(seed: int) -> Fault:
    """The fault of a number."""
    numbers = random.Random(seed)
    kind = numbers.choice((*ENDING, *HANGING, *WRONG, *REFUSING, ""))
    stage = "run" if kind in WRONG else numbers.choice(STAGES[:2] if kind in REFUSING else STAGES[:-1])
    stage = numbers.choice(STAGES) if kind in ENDING else stage
    impatient = numbers.random() < 0.3
    return Fault(kind=kind, stage=stage, has_reasons=seed % 2 == 0, impatient=impatient, has_helper=seed % 4 > 1)


def life(ours: Phone, fault: Fault, seed: int) -> list[Launch]:
    """The launches of an app on a phone; an impatient user ends one of them at any moment."""
    numbers, launches = random.Random(seed), []
    limit = LIMITS_MS[fault.kind in HANGING]
    limits: dict[str, Any] = {"limit": limit, **({"child_limits": limit} if fault.has_helper else {})}
    ended_by_user = numbers.randrange(LAUNCHES) if fault.impatient else None
    for number in range(LAUNCHES + 2):
        is_ended = number == ended_by_user
        waits = numbers.uniform(0.1, 1.2) if is_ended else 8.0 if fault.kind in HANGING and fault.stage == "run" else 0
        launch = ours.launch(fault.word, wait=True, user_waits=waits, seconds=300, **limits)
        if fault.kind in HANGING and not launch.is_whole and not is_ended:
            ours.wait_longer(PATIENCE_MS)
        if not is_ended:
            launches.append(launch)
    return launches


@pytest.mark.parametrize("part", range(PARTS))
def test_what_the_guard_promises_holds_for_each_fault(
    request: pytest.FixtureRequest, tmp_path: Path, part: int
) -> None:
    most, seconds = request.config.getoption("--schedules"), request.config.getoption("--schedule-seconds")
    end, broken, counts = time.monotonic() + (seconds or 1e9), [], Counter[str]()
    for seed in range(part, most, PARTS):
        if time.monotonic() > end:
            break
        fault = faults(seed)
        app: App = request.getfixturevalue("helped_app" if fault.has_helper else "app")
        ours = Phone(app=app, storage=tmp_path / f"phone{seed}", level=34 if fault.has_reasons else 29)
        launches = life(ours, fault, seed)
        crashes = sum(launch.code not in (0, -9) for launch in launches)
        sums = {value for launch in launches for value in launch.said("sum")}
        last = launches[-1].way.partition("+")[0]
        is_lost = last != ("webgpu" if fault.kind else "nnapi")
        counts.update(faults=1, crashes=crashes, lost=is_lost, launches=len(launches))
        # Without reasons the end of a process in the middle of a trial is a death of the way, whoever ended it.
        is_broken = is_lost and (fault.has_reasons or not fault.impatient)
        if crashes > fault.most_crashes or len(sums) > 1 or is_broken:
            told = [(launch.code, *launch.events) for launch in launches]
            broken.append(f"{seed} {fault}: {crashes} crashes, {len(sums)} sums, ends with {last!r}: {told}")
        print(seed, dict(counts), broken, flush=True)  # what a long run came to is seen, however it ends
    assert broken == []
