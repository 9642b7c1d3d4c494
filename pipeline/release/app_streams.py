"""How the classes for apps run a model that takes samples of sound in steps; the same in every language."""

import math
from dataclasses import dataclass
from enum import StrEnum

from device_runner.spec import ElementType
from pipeline.config import app_data
from pipeline.model.signature import TensorInfo
from pipeline.release import manifest as bundle_manifest

SAMPLES = (ElementType.INT16, ElementType.FLOAT32)
"""What a sample may be."""
CONSTANTS = (ElementType.INT64, ElementType.INT32, ElementType.FLOAT32)
"""What an input with a declared value may be."""


class Source(StrEnum):
    """Where an input of a step comes from."""

    SAMPLES = "samples"
    STATE = "state"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """What an input gets in each step.

    A state begins with `value` in each element, and gets what the `output` of the step before was; a constant has
    `value` in each step.
    """

    tensor: TensorInfo
    source: Source
    value: float = 0
    output: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the first step: open axes are one."""
        return tuple(axis if isinstance(axis, int) else 1 for axis in self.tensor.shape or ())

    @property
    def size(self) -> int:
        """The elements of that shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundStream:
    """A model in steps: `rate` samples a second go into its inputs by `feeds`, and the app gets its `output`."""

    rate: int
    feeds: tuple[StepInput, ...]
    output: str

    @property
    def samples(self) -> StepInput:
        """The input that gets what is new: as many samples as a step has."""
        return next(feed for feed in self.feeds if feed.source is Source.SAMPLES)


def stream_of(signature: bundle_manifest.ModelSignature) -> SoundStream | None:
    """The stream of a model; None for one without, or with an input that nothing is said of."""
    given = [output for output in signature.outputs if output.name not in signature.state]
    if not signature.rate or not given or given[0].dtype is not ElementType.FLOAT32:
        return None
    feeds = [feed for tensor in signature.inputs if (feed := _feed(tensor, signature))]
    sources = [feed.source for feed in feeds]
    if len(feeds) != len(signature.inputs) or sources.count(Source.SAMPLES) != 1:
        return None
    return SoundStream(rate=signature.rate, feeds=tuple(feeds), output=given[0].name)


def _feed(tensor: TensorInfo, signature: bundle_manifest.ModelSignature) -> StepInput | None:
    output, value = signature.source_of(tensor.name), signature.values.get(tensor.name)
    number = value if isinstance(value, int | float) else None
    if tensor.name == app_data.SAMPLES:
        usable = tensor.dtype in SAMPLES and tensor.fixed
        return StepInput(tensor=tensor, source=Source.SAMPLES) if usable else None
    if output is not None:
        usable = tensor.dtype is ElementType.FLOAT32 and output in {given.name for given in signature.outputs}
        usable = usable and (value is None or number is not None)
        return (
            StepInput(tensor=tensor, source=Source.STATE, value=float(number or 0), output=output) if usable else None
        )
    if tensor.dtype not in CONSTANTS or number is None:
        return None
    return StepInput(
        tensor=tensor,
        source=Source.CONSTANT,
        value=float(number) if tensor.dtype is ElementType.FLOAT32 else int(number),
    )
