"""Profile runs beside what was predicted of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from device_runner.coverage import Coverage, measured_coverage
from device_runner.result import RunResult
from pipeline.campaign.store import RunRecord
from pipeline.job.predict import Prediction, finding
from pipeline.job.record import RecordedRun
from pipeline.report.profiled import Profiled

PROFILES = "profiles"
"""The folder of traces in a job's output folder."""


def profiled(name: str, run: str, result: RunResult, prediction: Prediction | None) -> Profiled:
    """What one profile run says."""
    return Profiled(
        name=name,
        run=run,
        device=result.device,
        file=result.profile_file or "",
        profile=result.profile,
        coverage=_coverage(result),
        prediction=prediction,
        finding=finding(prediction, [result]),
        failure=result.failure.message if result.failure else "",
    )


def _coverage(result: RunResult) -> Coverage | None:
    """Nodes as the provider saw the model, partitions as it was asked last.

    Providers that want NHWC are asked again when Transposes were put in, which are no nodes of the model.
    """
    first, last = measured_coverage(result.log), measured_coverage(reversed(result.log))
    return msgspec.structs.replace(first, partitions=last.partitions) if first and last else None


def profiles_of(lanes: Iterable[RecordedRun], runs: Mapping[str, Sequence[RunRecord]]) -> Iterator[Profiled]:
    """The profile runs of planned lanes, in the order of the plan; `runs` are by lane id, timed ones among them."""
    for lane in lanes:
        for record in runs.get(lane.id, ()):
            if record.spec.profile:
                yield profiled(f"{lane.model} / {lane.variant}", lane.run, record.result, record.prediction)
