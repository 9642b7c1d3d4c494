"""Why candidates of a search were dropped, as one reads it: single numbers of many become spans."""

from pipeline.campaign.tuned import Dropped, TunedCandidate
from pipeline.features.tune.report import counted_reasons

LEFT_OUT = Dropped(reason="left out: 4 threads on 2 cores wait for each other")
RACED = "left at the end of the race, beside the leader"


def candidates(*reasons: Dropped | None) -> list[TunedCandidate]:
    return [TunedCandidate(variant="all-fixed", run="cpu", dropped=why) for why in reasons]


def test_equal_reasons_are_counted_and_their_shares_become_spans_whatever_the_words() -> None:
    found = counted_reasons(
        candidates(
            Dropped(reason=RACED, above=(-0.003, 0.008)),
            Dropped(reason=RACED, above=(-0.001, 0.01)),
            Dropped(reason="failed: +1.0% in round 3 of the race: x; counts as y", detail="cpu"),
            Dropped(reason="failed: +1.0% in round 3 of the race: x; counts as y", detail="nnapi"),
            Dropped(reason="failed: +2.0% in round 3 of the race: x; counts as y"),
            Dropped(reason="not measured", above=(0.03, 0.03)),
            *[LEFT_OUT] * 4,
        )
    )
    assert found == [
        (LEFT_OUT.reason, 4),
        (f"{RACED}: -0.3% to +1.0%", 2),
        ("failed: +1.0% in round 3 of the race: x; counts as y", 2),
        ("failed: +2.0% in round 3 of the race: x; counts as y", 1),
        ("not measured: +3.0%", 1),
    ]
