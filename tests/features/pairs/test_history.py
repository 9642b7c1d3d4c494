"""Histories: what raises a suspicion, what restarts them, and what is missing in them."""

import pytest

from pipeline.campaign.changed_facts import RELEASE, SETTINGS, SYSTEM
from pipeline.features.pairs.history import FEWEST_POINTS, IN_A_ROW, HistoryKey, HistoryPoint, history, restarts, rise
from tests.features.pairs import histories

KEY = HistoryKey("local", "m", "all-fixed/cpu")
QUIET = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 100.2, 99.8, 100.1, 99.9]


def points(values: list[float], **facts: dict[int, str]) -> list[HistoryPoint]:
    """A point for each value; facts change from the place on that each names."""
    names = {"system": SYSTEM, "release": RELEASE, "measurement": SETTINGS["min_runs"]}
    made = []
    for place, value in enumerate(values):
        told = {
            names[name]: text
            for name, changes in facts.items()
            for text in [changes[max(at for at in changes if at <= place)]]
        }
        made.append(HistoryPoint(campaign=f"c{place:02}", created_at="", median_ns=value, rounds=5, facts=told))
    return made


def test_three_slower_campaigns_in_a_row_raise_a_suspicion() -> None:
    found = history(KEY, points([*QUIET, 105.0, 105.5, 104.8]))
    assert found.suspicion is not None
    assert (found.suspicion.before, found.suspicion.first) == ("c09", "c10")
    assert found.suspicion.ratio == pytest.approx(1.05, abs=0.002)


@pytest.mark.parametrize(
    "newest", [[105.0, 105.0, 100.0], [140.0, 100.0, 105.0], [101.5, 101.5, 101.5], [95.0, 95.0, 95.0]]
)
def test_outliers_small_steps_and_faster_campaigns_do_not(newest: list[float]) -> None:
    assert history(KEY, points([*QUIET, *newest])).suspicion is None


def test_a_release_of_onnx_runtime_is_watched_and_named() -> None:
    found = history(KEY, points([*QUIET, 105.0, 105.0, 105.0], release={0: "1.21.0", 10: "1.31.1"}))
    assert found.suspicion is not None
    assert [(one.what, one.before, one.after) for one in found.suspicion.changes] == [
        ("ONNX Runtime", "1.21.0", "1.31.1")
    ]


@pytest.mark.parametrize("fact", ["system", "measurement"])
def test_another_system_or_other_settings_restart_it(fact: str) -> None:
    """Latencies of another system, or measured otherwise, are other quantities."""
    found = history(KEY, points([*QUIET, 105.0, 105.0, 105.0], **{fact: {0: "old", 10: "new"}}))
    assert found.suspicion is None
    assert [one.place for one in found.restarts] == [10]
    assert "3 of at least 11 campaigns since the environment changed" in found.note


def test_what_is_not_known_is_no_change() -> None:
    made = points([1.0, 2.0, 3.0], system={0: "a"})
    made[1] = HistoryPoint(campaign="older release", created_at="", median_ns=2.0, rounds=5)
    assert restarts(made) == ()


def test_a_short_history_says_so() -> None:
    found = history(KEY, points([100.0] * (FEWEST_POINTS + IN_A_ROW - 1)), {"c99": "it crashed"})
    assert found.note.startswith("10 of at least 11 campaigns")
    assert found.usual_ns is None
    assert [(one.campaign, one.reason) for one in found.missing] == [("c99", "it crashed")]


def test_equal_values_have_a_limit_too() -> None:
    assert rise([100.0] * 10 + [101.0] * 3) is None
    assert rise([100.0] * 10 + [103.0] * 3) is not None


def test_the_rules_keep_their_promises_on_a_part_of_the_simulation() -> None:
    """docs/numbers.md has 1,000 histories of each."""
    for rule in (histories.gate, histories.pairs):
        assert histories.alarmed(rule, 0.01, count=30) == 0.0
        assert histories.found(rule, 0.01, count=30) >= 0.9
    assert histories.alarmed(histories.last_commit, 0.01, count=30) > 0.5
