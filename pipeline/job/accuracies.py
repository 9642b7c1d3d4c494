"""The accuracy of what was prepared, where another precision than the model's has one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from pipeline import dataset as datasets
from pipeline.accuracy import evaluate
from pipeline.accuracy import result as accuracy_result
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core import workers
from pipeline.core.progress import Progress
from pipeline.job.precisions import calibration_data
from pipeline.job.prepare import Prepared
from pipeline.job.sessions import app_sessions
from pipeline.passes import precisions as passes_precisions

NO_DATA = "there are no evaluation data: give `test_data`, or `evaluation` of the model in the config"


def with_accuracy(prepared: Sequence[Prepared], config: Config, folder: Path, progress: Progress) -> list[Prepared]:
    """The same with the accuracy of every artifact in another precision than the model's own, beside the model's own.

    The others compute what the model does, as their check shows. Equal files are measured once in each of their
    sessions, of which the worst counts; what could not be measured has the reason, and those with wrong outputs are
    left out. Where this computer's processor would be at fault, the model in its precision is measured in place of the
    artifact: ONNX Runtime computes it exactly.
    """
    changed = [
        (model, artifact)
        for model in prepared
        for artifact in model.artifacts
        if artifact.variant.precision and model.sound(artifact)
    ]
    requests: dict[tuple[str, str, str], evaluate.AccuracyRequest] = {}
    for model, artifact in changed:
        data = datasets.part_of(model.table, datasets.Part.EVALUATION)
        for session in app_sessions(config.runs, artifact) if data.test_data else ():
            key = model.name, artifact.sha256, session.text
            if key in requests:
                continue
            file, base = folder / storage.ARTIFACTS / artifact.file, model.converted.base.model
            form = next(form for form in model.converted.models if form.precision == artifact.variant.precision)
            calibrated = passes_precisions.PRECISIONS[form.precision].needs_data
            requests[key] = evaluate.AccuracyRequest(
                model=form.model.source.path if check_reference.saturates_here(file) else str(file),
                reference=base.source,
                data=data,
                dimensions=base.dimensions,
                session_options=artifact.session_options,
                app=session,
                accuracy=config.accuracy,
                calibration=calibration_data(config, model.table) if calibrated else None,
                states=model.table.state or None,
                steps=model.table.stream_steps,
            )
    measured = evaluate.measure_accuracy(list(requests.values()), progress) if requests else []
    outcomes = dict(zip(requests, measured, strict=True))
    rows: dict[str, list[accuracy_result.ArtifactAccuracy]] = {model.name: [] for model in prepared}
    for model, artifact in changed:
        outcome = _worst_of(
            outcomes[key]
            for session in app_sessions(config.runs, artifact)
            if (key := (model.name, artifact.sha256, session.text)) in outcomes
        )
        why = outcome.error.text if outcome and outcome.error else "" if outcome else NO_DATA
        # What was run may lie in a folder that is gone after the job, and no path of a computer goes into a bundle.
        result = msgspec.structs.replace(outcome.value, model=artifact.file) if outcome and outcome.value else None
        ratio = output_compare.worst_sqnr(model.checks[artifact.variant.name])
        accuracy = accuracy_result.ArtifactAccuracy(
            model=model.name,
            variant=artifact.variant.name,
            result=result,
            why=why,
            sqnr_db=ratio if isinstance(ratio, float) else None,
        )
        rows[model.name].append(accuracy)
    return [replace(model, accuracy=tuple(rows[model.name])) for model in prepared]


def _worst_of(
    outcomes: Iterable[workers.TaskOutcome[accuracy_result.AccuracyResult]],
) -> workers.TaskOutcome[accuracy_result.AccuracyResult] | None:
    """Of one file's accuracy in several sessions the worst; None where it was not measured."""

    def gravity(outcome: workers.TaskOutcome[accuracy_result.AccuracyResult]) -> tuple[bool, bool, float]:
        result = outcome.value
        return result is None, bool(result and result.refused), (result.drop if result else None) or 0.0

    return max(outcomes, key=gravity, default=None)
