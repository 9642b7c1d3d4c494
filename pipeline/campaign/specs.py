"""From a planned run to the RunSpec of one round, with the inputs that it is given."""

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import RunSpec
from pipeline import config as configs
from pipeline.campaign.planned import Inputs, PlannedRun
from pipeline.campaign.statistics import mlperf as mlperf_rule
from pipeline.check import result as check_result
from pipeline.core import custom_ops as core_custom_ops

OUTPUTS_FACTOR, OUTPUTS_ROOM_BYTES = 4, 16 << 20
"""A device's outputs may be larger than the original's (detections of a model in half precision), within reason."""


def inputs_of(reference: check_result.Reference, dimensions: dict[str, int]) -> Inputs:
    """What the runs of a model are given: the reference's own inputs, and its labelled set."""
    labelled = reference.labelled.inputs if reference.labelled else None
    outputs = (*reference.outputs, *((reference.labelled.outputs,) if reference.labelled else ()))
    limit_bytes = OUTPUTS_ROOM_BYTES + OUTPUTS_FACTOR * sum(map(run_spec.tensor_bytes, outputs))
    return Inputs(
        tensors=reference.inputs,
        labelled=labelled,
        stream=reference.stream.stream if reference.stream and reference.stream.declared else None,
        dimensions=dimensions,
        outputs_limit_bytes=limit_bytes,
    )


def spec_id(planned: PlannedRun, number: int) -> str:
    """The identity of one run: planned run and round."""
    return f"{planned.id}#{number}"


SPARE_SECONDS = 60.0
"""What a run may take for loading beyond the time that it is asked to run for."""


def spec_of(
    planned: PlannedRun,
    number: int,
    *,
    model_file: str,
    library: str | None,
    inputs: Inputs,
    measure: configs.MeasureConfig,
) -> RunSpec:
    """The RunSpec of one planned run in one round; the artifact's own session options come with it.

    The labelled set is answered in the first round only: the same file gives the same answers in each. A cold run ends
    with its first inference, a sustained one when its time is over.
    """
    change, limit = msgspec.structs.replace, measure.timeout_seconds
    plugin, *files = measure.plugins.get(planned.run_options.provider, ("",))
    spec = RunSpec(
        id=spec_id(planned, number),
        model=model_file,
        model_sha256=planned.sha256,
        library=library,
        options=change(planned.run_options, custom_ops=(*planned.run_options.custom_ops, *core_custom_ops.given())),
        plugin=run_spec.Plugin(library=plugin, files=tuple(files)) if plugin else None,
        inputs=inputs.tensors,
        labelled=inputs.labelled if number == 0 and planned.mode is configs.MeasureMode.STEADY else None,
        dimensions=inputs.dimensions,
        outputs_limit_bytes=inputs.outputs_limit_bytes,
        data_limit_bytes=round(1e6 * (measure.fits_mb or 0)),
        perf_test=measure.perf_test,
    )
    if planned.mode is configs.MeasureMode.COLD:
        return change(spec, warmup=0, min_runs=0, min_seconds=0.0, timeout_seconds=limit, cold=True)
    if planned.mode is configs.MeasureMode.SUSTAINED:
        seconds = measure.sustained_seconds
        return change(spec, warmup=0, timeout_seconds=max(limit, seconds + SPARE_SECONDS), sustain_seconds=seconds)
    runs, seconds, longest = measure.min_runs, measure.min_seconds, measure.max_seconds
    if measure.rule is configs.MeasureRule.MLPERF:
        # At least as much as the single-stream scenario asks for; a slow model takes the longer for its inferences.
        runs, seconds = max(runs, mlperf_rule.MLPERF_RUNS), max(seconds, mlperf_rule.MLPERF_SECONDS)
        longest = max(longest, 10 * seconds)
        limit = max(limit, longest + SPARE_SECONDS)
    spec = change(
        spec, warmup=measure.warmup, min_runs=runs, min_seconds=seconds, max_seconds=longest, timeout_seconds=limit
    )
    if inputs.stream is None:
        return spec
    return change(spec, stream=inputs.stream, labelled=None, dimensions={}, warmup=0, min_runs=0, min_seconds=0.0)
