"""What the class of a model needs that takes samples of sound in steps: states that it carries from one to the next."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from device_runner.spec import ElementType
from pipeline.config import app_data
from pipeline.model.signature import TensorInfo
from pipeline.release import app_code, source_code
from pipeline.release import manifest as bundle_manifest

ELEMENTS = {ElementType.INT16: "short", ElementType.FLOAT32: "float"}
"""What a sample may be, in Java."""
CONSTANTS = {ElementType.INT64: "long", ElementType.INT32: "int", ElementType.FLOAT32: "float"}
"""What an input with a declared value may be, in Java."""


def of_sound(signature: bundle_manifest.ModelSignature, outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What Model.java needs of a model's stream; None for one without, or with an input that nothing is said of.

    `element` of samples, `hop` of them in a step, `rate`; `states` with a `field`, its `size`, the `first` value and
    the `output` that follows it; `arguments` of `run` with tensors; the `output` that the app gets of each step.
    """
    inputs = {given.name: given for given in signature.inputs}
    samples = inputs.get(app_data.SAMPLES)
    if not (signature.rate and samples and samples.dtype in ELEMENTS and samples.fixed):
        return None
    accessors = {output["name"]: output["identifier"] for output in outputs}
    given = [output for output in signature.outputs if output.name not in signature.state]
    if [output.dtype for output in given[:1]] != [ElementType.FLOAT32]:
        return None
    states: list[dict[str, Any]] = []
    arguments: list[source_code.Code] = []
    for tensor in signature.inputs:
        source, value = signature.source_of(tensor.name), signature.values.get(tensor.name)
        if tensor is samples:
            argument = source_code.Code("{}Buffer.wrap(step)").format(
                source_code.identifier(ELEMENTS[tensor.dtype or ElementType.FLOAT32].capitalize())
            )
        elif source in accessors and tensor.dtype is ElementType.FLOAT32 and isinstance(value, int | float | None):
            argument = source_code.identifier(f"state{len(states)}")
            states.append(
                {"field": argument, "size": _size(tensor), "first": float(value or 0), "output": accessors[source]}
            )
        elif tensor.dtype in CONSTANTS and isinstance(value, int | float):
            argument = _constant(tensor, value)
        else:
            return None
        arguments.append(argument)
        if not tensor.fixed:
            shape = [axis if isinstance(axis, int) else 1 for axis in tensor.shape or ()]
            arguments.append(source_code.Code("new long[] {{{}}}").format(source_code.joined(shape)))
    return {
        "element": ELEMENTS[samples.dtype or ElementType.FLOAT32],
        "hop": _size(samples),
        "rate": signature.rate,
        "states": states,
        "arguments": arguments,
        "output": accessors[given[0].name],
    }


def _size(tensor: TensorInfo) -> int:
    """The elements of a tensor whose open axes are one."""
    return math.prod(axis for axis in tensor.shape or () if isinstance(axis, int))


def _constant(tensor: TensorInfo, value: float) -> source_code.Code:
    """A buffer with a value in each element."""
    element = source_code.identifier(CONSTANTS[tensor.dtype or ElementType.FLOAT32])
    buffer = source_code.identifier(app_code.BUFFERS[tensor.dtype or ElementType.FLOAT32][0])
    text = source_code.Code("{}f" if tensor.dtype is ElementType.FLOAT32 else "{}").format(
        float(value) if tensor.dtype is ElementType.FLOAT32 else int(value)
    )
    return source_code.Code("{}.wrap(new {}[] {{{}}})").format(
        buffer, element, source_code.joined([text] * _size(tensor))
    )
