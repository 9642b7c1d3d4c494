"""What is said before the first run: about how long the whole job takes."""

from collections import Counter
from collections.abc import Iterable, Mapping

from pipeline import config as configs
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign.store import Store
from pipeline.check import result as check_result
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress

START_SECONDS = 0.1
"""What a run takes on this computer beside its inferences: a process, a library, a session of a small model."""
PROOF = "prove"
"""The stage of proofs in the libraries that ship."""


def here_seconds(
    planned_runs: Iterable[campaign_planned.PlannedRun],
    measure: configs.MeasureConfig,
    references: Mapping[str, check_result.Reference],
) -> float | None:
    """How long a run on this computer takes on average, as long as inferences take that the original took.

    None where nothing runs here.
    """
    seconds = [
        START_SECONDS + measure.seconds_of(run.mode, references[run.source].run_seconds)
        for run in planned_runs
        if run.device == "local"
    ]
    return sum(seconds) / len(seconds) if seconds else None


def last_proof_seconds(store: Store, name: str) -> float | None:
    """How long the proofs of the last campaign of a name took that had any; None where there is none."""
    for campaign in reversed(store.campaigns(name)):
        stages = [stage for stage in (campaign.document.stages if campaign.document else ()) if stage.name == PROOF]
        if any(stage.steps for stage in stages):
            return sum(stage.elapsed_ns for stage in stages) / 1e9
    return None


def total_text(
    spent_seconds: float,
    runs: Counter[str],
    run_seconds: float | None,
    chosen: int,
    *,
    auto: bool,
    proof: str,
    proof_seconds: float | None,
) -> str:
    """About how long the job takes in all, in parts; "" where that is not worth a line.

    `runs` are those to come, by device; `run_seconds` is what one takes here, `chosen` how many models are confirmed in
    fresh rounds, each beside another run. `proof` is a word on what nothing is known of where it takes place.
    """
    here = runs["local"] * (run_seconds or 0) + (
        2 * chosen * campaign_record.FRESH_ROUNDS * (run_seconds or 0) if runs["local"] else 0
    )
    parts = [f"{core_progress.duration_text(spent_seconds)} so far"]
    if runs["local"]:
        parts.append(
            f"{'at most ' if auto else ''}{core_progress.duration_text(here)} for "
            f"{counting.counted(runs['local'], 'run')} here"
        )
    if proof_seconds is not None:
        parts.append(f"{core_progress.duration_text(proof_seconds)} for the proof, as the last time")
    whole = spent_seconds + here + (proof_seconds or 0)
    phones = [name for name, count in runs.items() if name != "local" and count]
    unknown = [f"{counting.counted(len(phones), 'other device')}, known after the first run of each"] if phones else []
    unknown += [proof] if proof and proof_seconds is None else []
    if whole < core_progress.WORTH_SAYING_SECONDS and not phones:
        return ""
    beside = f"; beside it {' and '.join(unknown)}" if unknown else ""
    return f"about {core_progress.duration_text(whole)} in all: {', '.join(parts)}{beside}"
