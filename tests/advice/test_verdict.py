"""The documentation's guidance as a table."""

import pytest

from pipeline.advice.verdict import FixChoice, ProviderSupport, gain_of, improves, perfect, verdict

NNAPI, XNNPACK = "nnapi", "xnnpack"


def stand(claimed: int, partitions: int, *, nodes: int = 100, load_error: str | None = None) -> ProviderSupport:
    return ProviderSupport(nodes=nodes, claimed=claimed, partitions=partitions, load_error=load_error)


@pytest.mark.parametrize(
    ("standing", "provider", "choice", "reason"),
    [
        (stand(100, 1), NNAPI, FixChoice.USE, "one partition"),
        (stand(76, 1), NNAPI, FixChoice.USE, "76 %"),
        (stand(75, 1), NNAPI, FixChoice.MEASURE, "the CPU computes the rest"),
        (stand(50, 1), NNAPI, FixChoice.CPU, "50 %"),
        (stand(90, 2), NNAPI, FixChoice.MEASURE, "2 partitions"),
        (stand(75, 2), NNAPI, FixChoice.CPU, "75 %"),
        (stand(99, 3), NNAPI, FixChoice.CPU, "3 partitions"),
        (stand(0, 0), NNAPI, FixChoice.CPU, "supports no node"),
        (stand(0, 0, nodes=0), NNAPI, FixChoice.CPU, "supports no node"),
        (stand(100, 1, load_error="no"), NNAPI, FixChoice.CPU, "cannot be made"),
        (stand(90, 30), XNNPACK, FixChoice.MEASURE, "kernels for 90 %"),
        (stand(50, 1), XNNPACK, FixChoice.CPU, "50 %"),
    ],
)
def test_verdicts(standing: ProviderSupport, provider: str, choice: FixChoice, reason: str) -> None:
    given = verdict(standing, provider)
    assert given.choice is choice
    assert reason in given.reason


@pytest.mark.parametrize(
    ("after", "before", "provider", "better"),
    [
        (stand(100, 1), stand(80, 6), NNAPI, True),
        (stand(80, 6), stand(100, 1), NNAPI, False),
        (stand(80, 6), stand(80, 6), NNAPI, False),
        (stand(80, 5), stand(80, 6), NNAPI, True),
        (stand(81, 6), stand(80, 6), NNAPI, True),
        (stand(90, 7), stand(80, 6), NNAPI, False),
        (stand(60, 5), stand(80, 6), NNAPI, False),
        (stand(10, 5), stand(0, 0), NNAPI, True),
        (stand(0, 0), stand(10, 5), NNAPI, False),
        (stand(10, 3), stand(100, 1, load_error="no"), NNAPI, True),
        (stand(100, 1, load_error="no"), stand(10, 3), NNAPI, False),
        (stand(60, 60), stand(50, 50), XNNPACK, True),
        (stand(320, 7, nodes=332), stand(318, 7, nodes=330), NNAPI, False),
        (stand(320, 1, nodes=420), stand(300, 1, nodes=400), NNAPI, False),
        (stand(356, 3, nodes=358), stand(318, 7, nodes=330), NNAPI, True),
        (stand(78, 6, nodes=98), stand(80, 6), NNAPI, False),
    ],
)
def test_what_is_better(after: ProviderSupport, before: ProviderSupport, provider: str, better: bool) -> None:
    assert improves(after, before, provider) is better


def test_a_gain_that_coverage_rounds_away_is_named() -> None:
    gain = gain_of(stand(990, 1, nodes=1000), stand(991, 1, nodes=1000), NNAPI)
    assert gain == "partitions 1 → 1, coverage 99 → 99 %, nodes on the CPU 10 → 9"


def test_perfect_and_gain_in_words() -> None:
    assert perfect(stand(100, 1))
    assert not perfect(stand(100, 2))
    assert not perfect(stand(100, 1, load_error="no"))
    assert gain_of(stand(80, 6), stand(100, 1), NNAPI) == "partitions 6 → 1, coverage 80 → 100 %"
    assert gain_of(stand(80, 6), stand(100, 1), XNNPACK) == "coverage 80 → 100 %"
    assert gain_of(stand(80, 6, load_error="no"), stand(80, 6), NNAPI).endswith("loads on the phone")
