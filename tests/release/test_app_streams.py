"""What each input of a model gets in the steps of a stream."""

from typing import Any

import pytest

from device_runner.spec import ElementType
from pipeline.release.app_streams import Source, stream_of
from pipeline.release.manifest import ModelSignature
from tests.features.android.samples import signature, tensor

SAMPLES = tensor("samples", 1, 6, dtype=ElementType.INT16)


def voices(**more: Any) -> ModelSignature:
    inputs = (SAMPLES, tensor("h", "batch", 2), tensor("sr", dtype=ElementType.INT64))
    values = {"h": 0.5, "sr": 8000}
    return signature(**{
        "inputs": inputs, "outputs": (tensor("hn", "batch", 2), tensor("y", 1, 1)), "state": {"hn": "h"},
        "values": values, "rate": 8000, **more,
    })  # fmt: skip


def test_states_are_carried_and_declared_values_are_constants() -> None:
    stream = stream_of(voices())
    assert stream
    feeds = [(feed.tensor.name, feed.source, feed.value, feed.output, feed.shape) for feed in stream.feeds]
    assert feeds == [
        ("samples", Source.SAMPLES, 0, "", (1, 6)),
        ("h", Source.STATE, 0.5, "hn", (1, 2)),
        ("sr", Source.CONSTANT, 8000, "", ()),
    ]
    assert (stream.rate, stream.samples.size, stream.output) == (8000, 6, "y")


@pytest.mark.parametrize(
    "more",
    [
        {"rate": 0},
        {"values": {}},
        {"inputs": (tensor("samples", 1, "n"),)},
        {"inputs": (SAMPLES, tensor("h", 1, 2, dtype=ElementType.INT64)), "values": {"h": 1}},
        {"outputs": (tensor("hn", "batch", 2), tensor("y", 1, 1, dtype=ElementType.INT64))},
        {"outputs": (tensor("hn", "batch", 2),)},
    ],
    ids=["no rate", "an input without a value", "open steps", "a state of integers", "integers out", "states only"],
)
def test_what_a_class_cannot_run_in_steps_has_no_stream(more: dict[str, Any]) -> None:
    assert stream_of(voices(**more)) is None
