"""Forms of a float model for a chip's NPU: the precisions that suit it, made from test data or one random sample."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from pipeline.check.compare import read_tensor
from pipeline.check.result import Reference
from pipeline.core.providers import PROVIDER_RULES
from pipeline.dataset import Dataset, samples
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Feeds, PassContext
from pipeline.passes.precisions import PRECISIONS, RECIPES, Recipe
from pipeline.passes.registry import run_passes
from pipeline.passes.save import write_model

MOST_SAMPLES = 64
"""Calibration samples of one trial: more change its ranges little (quantization Q.6)."""


def recipes_for(provider: str) -> tuple[Recipe, ...]:
    """The precisions to try for a provider whose claims depend on a chip, the smallest first; none for others."""
    by_chip = PROVIDER_RULES[provider].by_chip
    return tuple(row for row in RECIPES.values() if by_chip and row.provider == provider)


def in_precision(loaded: LoadedModel, precision: str, reference: Reference, data: Dataset, target: Path) -> LoadedModel:
    """A float model in a precision, saved as `target`; calibrated on the data, without any on the reference's sample.

    Raises as the precision's passes do.
    """
    inputs = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    takes = own_inputs(loaded.proto)

    limited = msgspec.structs.replace(data, limit=min(data.limit or MOST_SAMPLES, MOST_SAMPLES))

    def feeds() -> Iterator[Feeds]:
        if data.test_data:
            yield from (sample.inputs for sample in samples(limited, takes))
        else:
            yield {info.name: inputs[info.name] for info in takes}

    context = PassContext(folder=target.parent, where=loaded.source.name, samples=feeds)
    quantized = run_passes(loaded, list(PRECISIONS[precision].steps), context).model
    write_model(quantized, target)
    saved = load_model(SourceModel(path=str(target)), target.parent)
    return replace(saved, source=SourceModel(path=str(target)))
