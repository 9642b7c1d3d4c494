"""Which runs of two sources become pairs."""

from pathlib import Path

from device_runner.spec import RunOptions
from pipeline.campaign.planned import PlannedRun
from pipeline.features.pairs.pairing import in_common
from pipeline.features.pairs.sources import PairSource


def source(path: str, count: int) -> PairSource:
    """So many variants of one model that came out as the same file."""
    planned = {}
    for number in range(count):
        run = PlannedRun(
            device="", model="m", variant=f"variant-{number:02}", source="m", file=path, sha256=path, size_bytes=1,
            options=RunOptions(),
        )  # fmt: skip
        planned[run.model, run.way] = run
    return PairSource(path=Path(path), shipped={}, planned=planned)


def test_of_variants_that_are_the_same_file_the_first_of_the_base_is_measured() -> None:
    """Not whichever the order of a set has first: that differs from process to process."""
    (pair,) = in_common(source("base", 40), source("candidate", 40)).pairs
    assert pair.base.run.variant == pair.candidate.run.variant == "variant-00"
