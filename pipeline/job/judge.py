"""The outputs of runs: what a model is given, and how what a device gives is compared with the original's."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from device_runner.result import RunResult
from device_runner.spec import TensorFile
from pipeline.accuracy.score import OutputsRequest, measure_outputs
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import Inputs, PlannedRun, planned_id
from pipeline.campaign.record import Prediction
from pipeline.check.compare import Array, OutputCheck, compare_outputs, read_tensor, top1_check
from pipeline.check.many import tolerance_for
from pipeline.check.result import Reference
from pipeline.check.saturation import excused
from pipeline.config import AccuracyConfig, CheckConfig, Config
from pipeline.core.errors import PipelineError
from pipeline.core.output import ARTIFACTS, PROFILES

log = logging.getLogger(__name__)

ON_THIS_PROCESSOR = ("local", "android-host:", "linux-host:")
"""What the names of devices begin with that are processes of this computer."""


def _tensors(files: Sequence[TensorFile]) -> dict[str, Array]:
    return {tensor.name: read_tensor(tensor) for tensor in files}


class OutputJudge:
    """Judges the outputs of runs by the model in its precision; reads each reference once.

    Accuracy is that of the device's own answers on the labelled set, compared with the float original's; it is
    computed for the first round of a planned run, and every round is checked for its agreement.
    """

    def __init__(
        self, references: Mapping[str, Reference], config: CheckConfig, accuracy: AccuracyConfig, artifacts: Path
    ) -> None:
        self.references = references
        self.artifacts = artifacts
        self.accuracy = accuracy
        self.measured: set[str] = set()
        self.tolerances = {model: tolerance_for(reference, config) for model, reference in references.items()}
        self.expected = {model: _tensors(reference.outputs) for model, reference in references.items()}
        self.originals = {model: _tensors(reference.original) for model, reference in references.items()}

    def __call__(self, planned: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; outputs that the device did not hand over fail."""
        model = planned.source
        actual = _tensors(result.outputs)
        checks = tuple(compare_outputs(self.expected[model], actual, self.tolerances[model], self.originals[model]))
        if planned.device.startswith(ON_THIS_PROCESSOR):
            checks = excused(checks, self.artifacts / planned.file, result.cpu)
        return (*checks, *self._labelled(planned, result))

    def _labelled(self, planned: PlannedRun, result: RunResult) -> Iterator[OutputCheck]:
        model = planned.source
        labelled = self.references[model].labelled
        if labelled and result.labelled_outputs:
            reference, actual = read_tensor(labelled.outputs), read_tensor(result.labelled_outputs)
            check = top1_check(labelled.outputs.name, reference, actual, self.tolerances[model])
            first = planned_id(planned) not in self.measured
            self.measured.add(planned_id(planned))
            yield self._with_accuracy(check, planned, result.labelled_outputs) if first else check

    def _with_accuracy(self, check: OutputCheck, planned: PlannedRun, outputs: TensorFile) -> OutputCheck:
        """The check with the metric of the outputs; as it is where there are no labels or they do not fit."""
        original = self.references.get(planned.model, self.references[planned.source]).labelled
        if original is None or not original.labels:
            return check
        try:
            found = measure_outputs(
                OutputsRequest(
                    model=planned.source,
                    outputs=(msgspec.structs.replace(outputs, name=original.outputs.name),),
                    expected=(original.outputs,),
                    labels=original.labels,
                    accuracy=self.accuracy,
                )
            )
        except PipelineError as error:
            log.warning("%s: no accuracy from this device: %s", planned.source, error)
            return check
        if found.value is None or found.reference_value is None:
            return check
        return msgspec.structs.replace(
            check, metric=found.metric, value=found.value, original_value=found.reference_value
        )


def campaign_plan(
    config: Config,
    campaign: str,
    planned_runs: Sequence[PlannedRun],
    folder: Path,
    *,
    references: Mapping[str, Reference],
    inputs: Mapping[str, Inputs],
    libraries: Mapping[str, str | None],
    predictions: Mapping[str, Prediction],
) -> CampaignPlan:
    """What is run of planned runs; references and inputs are by the source of a run, their files in `folder`."""
    return CampaignPlan(
        campaign=campaign,
        planned_runs=planned_runs,
        measure=config.measure,
        conditions=config.conditions,
        artifacts=folder / ARTIFACTS,
        inputs=inputs,
        libraries=libraries,
        judge=OutputJudge(references, config.check, config.accuracy, folder / ARTIFACTS),
        predictions=predictions,
        profiles=folder / PROFILES,
    )
