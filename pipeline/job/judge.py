"""The outputs of runs: what a model is given, and how what a device gives is compared with the original's."""

from collections.abc import Iterator, Mapping

from device_runner.files import tensor_bytes
from device_runner.result import RunResult
from pipeline.campaign.plan import Inputs, PlannedRun
from pipeline.check.compare import compare_outputs, read_tensor, top1_check
from pipeline.check.many import tolerance_for
from pipeline.check.output import OutputCheck
from pipeline.check.reference import Reference
from pipeline.config import CheckConfig

OUTPUTS_FACTOR, OUTPUTS_ROOM_BYTES = 4, 16 << 20
"""A device's outputs may be larger than the original's (detections of a model in half precision), within reason."""


def inputs_of(reference: Reference, dimensions: dict[str, int]) -> Inputs:
    """What the runs of a model are given: the reference's own inputs, and its labelled set."""
    labelled = reference.labelled.inputs if reference.labelled else None
    outputs = (*reference.outputs, *((reference.labelled.outputs,) if reference.labelled else ()))
    limit_bytes = OUTPUTS_ROOM_BYTES + OUTPUTS_FACTOR * sum(map(tensor_bytes, outputs))
    return Inputs(
        tensors=reference.inputs,
        labelled=labelled,
        dimensions=dimensions,
        outputs_limit_bytes=limit_bytes,
    )


class OutputJudge:
    """Judges the outputs of runs by the model in its precision; reads each reference once."""

    def __init__(self, references: Mapping[str, Reference], config: CheckConfig) -> None:
        self.references = references
        self.tolerances = {model: tolerance_for(reference, config) for model, reference in references.items()}
        self.expected = {
            model: {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
            for model, reference in references.items()
        }

    def __call__(self, planned: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; outputs that the device did not hand over fail."""
        model = planned.source
        actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
        checks = compare_outputs(self.expected[model], actual, self.tolerances[model])
        return (*checks, *self._labelled(model, result))

    def _labelled(self, model: str, result: RunResult) -> Iterator[OutputCheck]:
        labelled = self.references[model].labelled
        if labelled and result.labelled_outputs:
            reference, actual = read_tensor(labelled.outputs), read_tensor(result.labelled_outputs)
            yield top1_check(labelled.outputs.name, reference, actual, self.tolerances[model])
