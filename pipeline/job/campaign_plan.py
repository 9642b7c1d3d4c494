"""What a campaign of a job runs: its plan and that of its fresh rounds, with the check of every run's outputs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from device_runner import result as run_result
from device_runner.result import RunResult
from device_runner.spec import TensorFile
from pipeline import config as configs
from pipeline.accuracy import score as accuracy_score
from pipeline.campaign import changed_facts
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign.store import Store
from pipeline.check import compare as output_compare
from pipeline.check import many as check_many
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.check.compare import Array, OutputCheck
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core.errors import PipelineError

log = logging.getLogger(__name__)


def _tensors(files: Sequence[TensorFile]) -> dict[str, Array]:
    return {tensor.name: output_compare.read_tensor(tensor) for tensor in files}


class OutputChecker:
    """Checks the outputs of runs by the model in its precision; reads each reference once.

    Accuracy is that of the device's own answers on the labelled set, compared with the float original's; it is
    computed for the first round of a planned run, and every round is checked for its agreement.
    """

    def __init__(
        self,
        references: Mapping[str, check_result.Reference],
        config: configs.CheckConfig,
        accuracy: configs.AccuracyConfig,
        artifacts: Path,
    ) -> None:
        self.references = references
        self.artifacts = artifacts
        self.accuracy = accuracy
        self.measured: set[str] = set()
        self.tolerances = {
            model: check_many.tolerance_for(reference, config) for model, reference in references.items()
        }
        self.expected = {model: _tensors(reference.outputs) for model, reference in references.items()}
        self.originals = {model: _tensors(reference.original) for model, reference in references.items()}
        self.simulated = {
            (model, variant): _tensors(files)
            for model, reference in references.items()
            for variant, files in reference.simulated.items()
        }
        streams = {
            model: reference.stream
            for model, reference in references.items()
            if reference.stream and reference.stream.declared
        }
        self.streamed = {model: _tensors(stream.outputs) for model, stream in streams.items()}
        self.float_streams = {model: _tensors(stream.original) for model, stream in streams.items()}

    def __call__(self, planned: campaign_planned.PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; outputs that the device did not hand over fail."""
        model = planned.source
        actual = _tensors(result.outputs)
        expected, original = self.expected[model], self.originals[model]
        tracked: tuple[str, ...] = ()
        stream = self.references[model].stream
        if stream and stream.declared and planned.mode is configs.MeasureMode.STEADY:
            expected, original, tracked = self.streamed[model], self.float_streams[model], stream.stream.tracked
        compared = output_compare.compare_outputs(expected, actual, self.tolerances[model], original)
        checks = tuple(output_compare.with_first_step(compared, expected, actual, tracked))
        if planned.device.startswith(changed_facts.ON_THIS_COMPUTER):
            checks = check_reference.excused(checks, self.artifacts / planned.file, result.cpu)
        elif run_result.Mark.SIMULATED not in result.marks:
            checks = tuple(
                output_compare.beside_simulator(checks, self.simulated.get((model, planned.variant), {}), actual)
            )
        labelled, outputs = self.references[model].labelled, result.labelled_outputs
        if labelled is None or not outputs:
            return checks
        top1 = output_compare.top1_check(
            labelled.outputs.name,
            output_compare.read_tensor(labelled.outputs),
            output_compare.read_tensor(outputs),
            self.tolerances[model],
        )
        given = self.references.get(planned.model, self.references[model]).labelled
        if given and given.labels and planned.id not in self.measured:
            self.measured.add(planned.id)
            try:
                named = msgspec.structs.replace(outputs, name=given.outputs.name)
                metric = accuracy_score.measure_outputs(model, [named], [given.outputs], given.labels, self.accuracy)
            except PipelineError as error:  # labels that do not fit
                log.warning("%s: no accuracy from this device: %s", model, error)
            else:
                if metric.value is not None and metric.reference_value is not None:
                    top1 = msgspec.structs.replace(
                        top1, metric=metric.metric, value=metric.value, original_value=metric.reference_value
                    )
        return (*checks, top1)


def campaign_plan(
    config: Config,
    campaign: str,
    planned_runs: Sequence[campaign_planned.PlannedRun],
    folder: Path,
    *,
    references: Mapping[str, check_result.Reference],
    inputs: Mapping[str, campaign_planned.Inputs],
    libraries: Mapping[str, str | None],
    predictions: Mapping[str, campaign_record.Prediction],
) -> campaign_measure.CampaignPlan:
    """What is run of planned runs; references and inputs are by the source of a run, their files in `folder`."""
    return campaign_measure.CampaignPlan(
        campaign=campaign,
        planned_runs=planned_runs,
        measure=config.measure,
        conditions=config.conditions,
        artifacts=folder / storage.ARTIFACTS,
        inputs=inputs,
        libraries=libraries,
        check=OutputChecker(references, config.check, config.accuracy, folder / storage.ARTIFACTS),
        predictions=predictions,
        profiles=folder / storage.PROFILES,
    )


def fresh_plan(
    plan: campaign_measure.CampaignPlan, again: Sequence[campaign_planned.PlannedRun], store: Store
) -> campaign_measure.CampaignPlan:
    """The plan of the fresh rounds of some runs."""
    rounds = {name: [run for run in again if run.device == name] for name in {run.device for run in again}}
    schedules = {
        name: campaign_measure.OpenTurns(
            (
                (run, campaign_record.FRESH_FROM + number)
                for number in range(campaign_record.FRESH_ROUNDS)
                for run in planning.order_of_round(runs, number)
            ),
            store,
            plan.campaign,
        )
        for name, runs in rounds.items()
    }
    return replace(plan, planned_runs=again, schedules=schedules)
