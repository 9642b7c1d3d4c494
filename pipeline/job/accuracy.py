"""What the precisions of a model cost in accuracy, measured on this computer before anything ships."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.accuracy.evaluate import AccuracyRequest, measure_accuracy
from pipeline.accuracy.result import AccuracyResult
from pipeline.campaign.record import ArtifactAccuracy
from pipeline.check.saturation import saturates_here
from pipeline.config import Config, ModelConfig
from pipeline.convert.precisions import PrecisionSet
from pipeline.core.output import ARTIFACTS
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.core.workers import TaskOutcome
from pipeline.dataset import Part, part_of
from pipeline.job.prepare import Prepared
from pipeline.job.targets import calibration_data
from pipeline.passes.precisions import PRECISIONS

NO_DATA = "there are no evaluation data: give `test_data`, or `evaluation` of the model in the config"


def with_accuracy(
    prepared: Sequence[Prepared], sets: Sequence[PrecisionSet], config: Config, folder: Path, progress: Progress
) -> list[Prepared]:
    """The same with the accuracy of every artifact in another precision than the model's own, beside the model's own.

    The others compute what the model does, as their check shows. Equal files are measured once; what could not be
    measured has the reason. Where this computer's processor would be at fault, the model in its precision is measured
    in place of the artifact: ONNX Runtime computes it exactly.
    """
    requests: dict[tuple[str, str], AccuracyRequest] = {}
    for one, group in zip(prepared, sets, strict=True):
        for artifact in one.artifacts:
            if artifact.variant.precision and one.sound(artifact) and part_of(one.table, Part.EVALUATION).test_data:
                request = _request(artifact, one.table, group, config, folder)
                requests.setdefault((one.model.name, artifact.sha256), request)
    if not requests:
        return [replace(one, accuracy=_of(one, {})) for one in prepared]
    outcomes = dict(zip(requests, measure_accuracy(list(requests.values()), progress), strict=True))
    return [replace(one, accuracy=_of(one, outcomes)) for one in prepared]


def _request(
    artifact: Artifact, table: ModelConfig, group: PrecisionSet, config: Config, folder: Path
) -> AccuracyRequest:
    file = folder / ARTIFACTS / artifact.file
    form = next(one for one in group.models if one.precision == artifact.variant.precision)
    return AccuracyRequest(
        model=form.model.source.path if saturates_here(file) else str(file),
        reference=group.own.model.source,
        data=part_of(table, Part.EVALUATION),
        dimensions=group.own.model.dimensions,
        session_options=artifact.session_options,
        accuracy=config.accuracy,
        calibration=calibration_data(config, table) if PRECISIONS[form.precision].needs_data else None,
    )


def _of(
    one: Prepared, outcomes: dict[tuple[str, str], TaskOutcome[AccuracyRequest, AccuracyResult]]
) -> tuple[ArtifactAccuracy, ...]:
    """The accuracy of a model's artifacts in other precisions; those with wrong outputs are left out before."""
    found = []
    for artifact in one.artifacts:
        if artifact.variant.precision and one.sound(artifact):
            outcome = outcomes.get((one.model.name, artifact.sha256))
            why = outcome.error.text if outcome and outcome.error else "" if outcome else NO_DATA
            found.append(
                ArtifactAccuracy(
                    model=one.model.name,
                    variant=artifact.variant.name,
                    result=outcome.value if outcome else None,
                    why=why,
                )
            )
    return tuple(found)
