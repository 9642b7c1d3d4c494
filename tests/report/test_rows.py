"""Rows: what stored runs come to."""

from collections.abc import Iterator

import msgspec
import pytest

from device_runner.result import Mark, Status
from pipeline.accuracy.result import ArtifactAccuracy
from pipeline.campaign.statistics.compare import Verdict
from pipeline.campaign.statistics.groups import Doubt
from pipeline.check.compare import OutputCheck
from pipeline.report import wording
from pipeline.report.accuracies import accuracies
from pipeline.report.decision import decisions
from pipeline.report.layout import results
from pipeline.report.model import NEVER_RUN, MeasuredRun, Row, ends_of, make_rows, worst_checks
from tests.report_samples import BAD, GOOD, REFUSED, lane, make_report, measured, record, runs


def only(one: MeasuredRun) -> Row:
    (row,) = make_rows([one], {})
    return row


def test_rows_keep_their_order_within_model_and_device() -> None:
    a, b = measured("m", "one"), measured("m", "two")
    mixed = [one for pair in zip(a, b, strict=True) for one in pair]
    assert make_rows(mixed, {}) == make_rows([*a, *b], {})
    rows = make_rows(mixed, {})
    assert [row.device for row in rows] == ["one"] * 7 + ["two"] * 7
    assert [row.variant for row in rows[:7]] == [planned.variant for planned, _ in a[:7]]


class Counted(tuple[Row, ...]):
    """Rows that count how often they are gone through."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[Row]:
        Counted.times += 1
        return super().__iter__()


def test_rows_are_gone_through_as_often_for_many_models_as_for_one() -> None:
    one, times = make_report(), []
    for number in (1, 30):
        names = [f"m{place}" for place in range(number)]
        many = {
            field: tuple(msgspec.structs.replace(value, model=name) for name in names for value in getattr(one, field))
            for field in ("rows", "choices", "artifacts", "checks")
        }
        accuracy = tuple(ArtifactAccuracy(model=name, variant=one.rows[0].variant) for name in names)
        report = msgspec.structs.replace(one, **many | {"rows": Counted(many["rows"]), "accuracy": accuracy})
        Counted.times = 0
        assert {name for name, _ in results(report)} == set(names)
        assert len(decisions(report)) == number * len(one.choices) + len(one.withheld)
        assert accuracies(report).rows
        times.append(Counted.times)
    assert times[0] == times[1]


def test_every_kind_of_outcome() -> None:
    made = make_rows(measured("m", "d"), {})
    verdicts = [row.comparison.verdict if row.comparison else None for row in made]
    assert verdicts == [None, Verdict.FASTER, Verdict.SAME, Verdict.NOT_SHOWN, Verdict.SLOWER, Verdict.FASTER, None]
    assert [row.status for row in made] == [Status.OK] * 6 + [Status.FAILED]
    assert [row.failed_rounds for row in made] == [0, 0, 0, 0, 1, 0, 3]
    failures, skipped = ends_of(measured("m", "d"))
    assert [(failure.code, failure.times) for failure in failures] == [("timeout", 1), ("provider_refused", 3)]
    assert [row.text for row in skipped] == ["no XNNPACK"]


def test_each_device_and_model_has_its_own_baseline() -> None:
    slow = [
        lane(*runs(f, 1), device=d, variant=v, baseline=v == "a")
        for d, scale in (("x", 1), ("y", 10))
        for v, f in (("a", scale), ("b", 2 * scale))
    ]
    ratios = [row.comparison.ratio for row in make_rows(slow, {}) if row.comparison]
    assert ratios == pytest.approx([2, 2], rel=1e-5)


def test_what_follows_a_failed_baseline_is_compared_with_the_next_of_its_options() -> None:
    lanes = [
        lane(record(0, (), REFUSED), variant="none", run="cpu", baseline=True),
        lane(*runs(4, 1), variant="none", run="xnnpack"),
        lane(*runs(2, 1), variant="basic", run="cpu"),
        lane(*runs(1, 1), variant="all", run="cpu"),
    ]
    made = make_rows(lanes, {})
    assert [row.baseline for row in made] == [False, False, True, False]
    assert [row.comparison.ratio for row in made if row.comparison] == pytest.approx([2, 0.5], rel=1e-5)
    assert {row.comparison.baseline for row in made if row.comparison} == {"basic/cpu"}


def test_a_mark_that_a_host_stored_twice_counts_once_for_its_round() -> None:
    marked = (record(number, (2_000_000,), marks=(Mark.THROTTLED, Mark.THROTTLED)) for number in range(2))
    reasons = " ".join(caution.what for caution in only(lane(*marked)).cautions)
    assert "in 2 of 2 rounds" in reasons


def test_numbers_of_a_row() -> None:
    row = only(lane(record(0, (10, 20)), record(1, (30,), marks=(Mark.THROTTLED,)), record(2, (), REFUSED)))
    assert (row.rounds, row.failed_rounds, row.load_ns, row.first_run_ns) == (2, 1, 3_000_000, 900_000)
    assert row.memory_peak_bytes == 41_000_000
    assert row.statistics is not None
    assert (row.statistics.samples, row.statistics.median_ns) == (3, 20.0)
    assert Doubt.THROTTLED in {caution.code for caution in row.cautions}
    assert len(row.shape.latencies_ns) == 20
    assert set(row.shape.latencies_ns) == {10, 20, 30}


def test_without_a_baseline_nothing_is_compared() -> None:
    rows = make_rows([lane(*runs(1, 1), variant="a"), lane(*runs(1, 1), variant="b")], {})
    assert [row.comparison for row in rows] == [None, None]


def test_what_was_never_run_is_said() -> None:
    assert make_rows([lane()], {}) == ()
    failures, skipped = ends_of([lane()])
    assert (failures, [row.text for row in skipped]) == ((), [NEVER_RUN])


def test_the_same_lane_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="same key"):
        make_rows([lane(), lane()], {})


def test_worst_checks() -> None:
    (check,) = worst_checks([(GOOD,), (BAD,), (GOOD,)])
    assert check == BAD
    assert worst_checks([(), ()]) == ()
    assert [one.output for one in worst_checks([(GOOD, OutputCheck(output="b", passed=True))])] == ["logits", "b"]
    near = OutputCheck(output="o", passed=True, max_abs_error=1.0, cosine=0.5)
    far = OutputCheck(output="o", passed=True, max_abs_error=2.0, cosine=0.9)
    (mixed,) = worst_checks([(near,), (far,), (OutputCheck(output="o", passed=True),)])
    assert (mixed.passed, mixed.max_abs_error, mixed.cosine) == (True, 2.0, 0.5)


def test_what_runs_the_same_has_the_numbers_of_the_one_that_ran_and_counts_once() -> None:
    own = [
        lane(*runs(1, 1), variant="a", baseline=True),
        lane(*runs(2, 2), variant="b"),
    ]
    twin = lane(variant="c", same_as="b/cpu")
    alone, both = make_rows(own, {}), make_rows([*own, twin], {})
    assert both[:2] == alone, "no statistic knows of it"
    assert ends_of([*own, twin]) == ends_of(own)
    row = both[2]
    assert (row.variant, row.same_as, row.baseline) == ("c", "b/cpu", False)
    assert (row.statistics, row.comparison) == (both[1].statistics, both[1].comparison)
    assert wording.verdict(row) == "same file as b"


def test_what_runs_the_same_as_a_run_that_never_was_has_no_row() -> None:
    rows = [lane(), lane(variant="c", same_as="v/cpu")]
    assert make_rows(rows, {}) == ()
    assert [row.variant for row in ends_of(rows)[1]] == ["v"]
