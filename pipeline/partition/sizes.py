"""Sizes that a model's dynamic dimensions could have, where nobody names them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.dataset.dimensions import names_of, open_axes, resolve_dimensions
from pipeline.dataset.signature import own_inputs
from pipeline.errors import ModelError
from pipeline.onnx_model import fix_dimensions
from pipeline.partition.ort_types import infer, slim_copy

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.onnx_model import LoadedModel

LIKELY = (224, 256, 320, 128, 64, 32, 16, 8, 1)
"""Sizes tried for everything but a batch, the commonest of image models first."""


def dynamic_names(model: "ModelProto") -> tuple[str, ...]:
    """The shortest names of the inputs' dimensions that have no size."""
    return tuple(names_of(open_axes(own_inputs(model))))


def unnamed(model: "ModelProto", given: Mapping[str, int]) -> tuple[str, ...]:
    """The dynamic dimensions for which no size is given."""
    takes = own_inputs(model)
    sizes = resolve_dimensions(takes, given, "the model")
    return tuple(name for name, axes in names_of(open_axes(takes)).items() if any(a.key not in sizes for a in axes))


def likely_sizes(loaded: "LoadedModel", given: Mapping[str, int]) -> dict[str, int] | None:
    """Sizes for all dynamic dimensions that ONNX Runtime's shape inference accepts; None where none were found.

    A batch (the first of several axes) is 1. Claims hardly depend on which size it is, as long as it is one.
    ConfigError when a size is given for a dimension that the model does not have.
    """
    takes = own_inputs(loaded.proto)
    names = names_of(open_axes(takes))
    known = resolve_dimensions(takes, given, loaded.source.name)
    ranks = {info.name: len(info.shape or ()) for info in takes}
    batches = {name for name, axes in names.items() if any(a.axis == 0 and ranks[a.input] > 1 for a in axes)}
    for size in LIKELY:
        sizes = {
            name: next((known[a.key] for a in axes if a.key in known), 1 if name in batches else size)
            for name, axes in names.items()
        }
        model = slim_copy(loaded.proto)
        fix_dimensions(model, sizes | dict(given), loaded.source.name)
        try:
            infer(model)
        except ModelError:
            continue
        return sizes
    return None
