"""A stream of samples of sound in Java: the states that an object of it has, and what a step runs the model on."""

from collections.abc import Mapping
from typing import Any

from device_runner.spec import ElementType
from pipeline.release import app_code, app_streams, source_code
from pipeline.release import manifest as bundle_manifest

ELEMENTS = {ElementType.INT16: "short", ElementType.FLOAT32: "float"}
"""What a sample may be, in Java."""
CONSTANTS = {ElementType.INT64: "long", ElementType.INT32: "int", ElementType.FLOAT32: "float"}
"""What an input with a declared value may be, in Java."""


def of_sound(signature: bundle_manifest.ModelSignature, accessors: Mapping[str, str]) -> dict[str, Any] | None:
    """What Model.java needs of a model's stream; None for one without. `accessors` are those of outputs, by name.

    `element` of samples, `hop` of them in a step, `rate`; `states` with a `field`, its `size`, the `first` value and
    the `output` that follows it; `arguments` of `run` with tensors; the `output` that the app gets of each step.
    """
    stream = app_streams.stream_of(signature)
    if stream is None:
        return None
    states: list[dict[str, Any]] = []
    arguments: list[source_code.Code] = []
    for feed in stream.feeds:
        if feed.source is app_streams.Source.SAMPLES:
            kind = ELEMENTS[feed.tensor.dtype or ElementType.FLOAT32].capitalize()
            argument = source_code.Code("{}Buffer.wrap(step)").format(source_code.identifier(kind))
        elif feed.source is app_streams.Source.STATE:
            argument = source_code.identifier(f"state{len(states)}")
            states.append({"field": argument, "size": feed.size, "first": feed.value, "output": accessors[feed.output]})
        else:
            argument = _constant(feed)
        arguments.append(argument)
        if not feed.tensor.fixed:
            arguments.append(source_code.Code("new long[] {{{}}}").format(source_code.joined(feed.shape)))
    samples = stream.samples
    return {
        "element": ELEMENTS[samples.tensor.dtype or ElementType.FLOAT32],
        "hop": samples.size,
        "rate": stream.rate,
        "states": states,
        "arguments": arguments,
        "output": accessors[stream.output],
    }


def _constant(feed: app_streams.StepInput) -> source_code.Code:
    """A buffer with a value in each element."""
    kind = feed.tensor.dtype or ElementType.FLOAT32
    element, buffer = source_code.identifier(CONSTANTS[kind]), source_code.identifier(app_code.BUFFERS[kind][0])
    text = source_code.Code("{}f" if kind is ElementType.FLOAT32 else "{}").format(feed.value)
    return source_code.Code("{}.wrap(new {}[] {{{}}})").format(buffer, element, source_code.joined([text] * feed.size))
