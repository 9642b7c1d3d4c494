"""Why candidates of a search were dropped, as one reads it: single numbers of many become spans."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.campaign.tuned import TunedCandidate
from pipeline.report.tuning import counted_reasons

LEFT_OUT = "left out: 4 threads on 2 cores wait for each other"


def candidates(*reasons: str) -> list[TunedCandidate]:
    return [TunedCandidate(variant="all-fixed", run="cpu", dropped=reason) for reason in reasons]


def test_equal_reasons_are_counted_and_their_percentages_become_spans() -> None:
    found = counted_reasons(
        candidates(
            "measured once, expected at +0.7% of the winner after 69 runs",
            "measured 3 times, expected at -0.2% of the winner after 69 runs",
            "measured once, expected at +1.4% of the winner after 69 runs",
            "left at the end of the race, at -0.3% to +0.8% of the leader",
            "left at the end of the race, at -0.1% to +1.0% of the leader",
            "not measured, predicted at +3.0% of the winner after 69 runs",
            "latency 0.0725 is over max_latency_ms = 0.01",
            "latency 1.1 is over max_latency_ms = 0.01",
            *[LEFT_OUT] * 4,
        )
    )
    assert found == [
        (LEFT_OUT, 4),
        ("measured, expected at -0.2% to +1.4% of the winner after 69 runs", 3),
        ("left at the end of the race, at -0.3% to +1.0% of the leader", 2),
        ("latency is over max_latency_ms = 0.01", 2),
        ("not measured, predicted at +3.0% of the winner after 69 runs", 1),
    ]


@given(st.lists(st.sampled_from([LEFT_OUT, "at +1.0%", "at +2.0%", "at -1.0% to +2.0%", "100% of +1.0%", ""])))
def test_no_candidate_is_lost(reasons: list[str]) -> None:
    assert sum(number for _, number in counted_reasons(candidates(*reasons))) == len(reasons)
