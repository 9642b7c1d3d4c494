"""First starts of an app: medians over rounds, each a new process."""

from collections.abc import Iterable
from statistics import median

import msgspec

from device_runner.result import RunResult, Status
from pipeline.campaign.statistics.compare import Comparison


class ColdNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """First starts of an app: medians over rounds, each a new process; `total_ns` is load and first run together.

    `cold_rounds` counts those of which the system confirmed that the model's file was not in memory; `library_rounds`
    the same of the library's, whose loading `open_ns` is. `why` says what was wrong with the others.
    """

    rounds: int
    cold_rounds: int
    library_rounds: int
    open_ns: int
    load_ns: int
    first_run_ns: int
    total_ns: int
    totals_ns: tuple[int, ...]
    why: str = ""
    comparison: Comparison | None = None


def cold_numbers(results: Iterable[RunResult], comparison: Comparison | None = None) -> ColdNumbers | None:
    """The numbers of cold runs; None where none went well."""
    good = [result for result in results if result.status is Status.OK and result.cold]
    if not good:
        return None
    cold = [result.cold for result in good if result.cold]
    totals = tuple(result.load_ns + result.first_run_ns for result in good)
    return ColdNumbers(
        rounds=len(good),
        cold_rounds=sum(start.cold for start in cold),
        library_rounds=sum(start.library_resident_bytes == 0 for start in cold),
        open_ns=int(median(result.open_ns for result in good)),
        load_ns=int(median(result.load_ns for result in good)),
        first_run_ns=int(median(result.first_run_ns for result in good)),
        total_ns=int(median(totals)),
        totals_ns=totals,
        why="; ".join(dict.fromkeys(start.how for start in cold if not start.cold)),
        comparison=comparison,
    )
