"""Sizes for dynamic dimensions, so that rules that want fixed shapes can be asked what they would claim."""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError
from pipeline.dataset.candidates import assignments, units, with_sums
from pipeline.model.onnx_model import LoadedModel, fix_dimensions
from pipeline.model.signature import names_of, open_axes, own_inputs, resolve_dimensions
from pipeline.partition.ort_view import infer, slim_copy

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_TRIALS = 12
"""Loading a model needs a tenth of a second, and the first sizes are nearly always accepted."""


def dynamic_names(model: "ModelProto") -> tuple[str, ...]:
    """The shortest names of the inputs' dimensions that have no size."""
    return tuple(names_of(open_axes(own_inputs(model))))


def unnamed(model: "ModelProto", given: Mapping[str, int]) -> tuple[str, ...]:
    """The dynamic dimensions for which no size is given."""
    takes = own_inputs(model)
    sizes = resolve_dimensions(takes, given, "the model")
    return tuple(name for name, axes in names_of(open_axes(takes)).items() if any(a.key not in sizes for a in axes))


def likely_sizes(loaded: LoadedModel, given: Mapping[str, int]) -> dict[str, int] | None:
    """Sizes for all dynamic dimensions that ONNX Runtime's shape inference accepts; None where none were found.

    Nothing is run: claims hardly depend on which size it is, as long as it is one. ConfigError when a size is given for
    a dimension that the model does not have.
    """
    takes = own_inputs(loaded.proto)
    names = names_of(open_axes(takes))
    known = resolve_dimensions(takes, given, loaded.source.name)
    asked = {name: known[axes[0].key] for name, axes in names.items() if axes[0].key in known}
    left = tuple(axis for axis in open_axes(takes) if axis.key not in known)
    for found in islice(assignments(units(loaded.proto, takes, left)), MOST_TRIALS):
        sizes = with_sums(asked | {name: size for name, (size, _) in found.items()}, list(names))
        if _accepted(loaded, sizes):
            return {name: sizes[name] for name in names}
    return None


def _accepted(loaded: LoadedModel, sizes: Mapping[str, int]) -> bool:
    model = slim_copy(loaded.proto)
    fix_dimensions(model, sizes, loaded.source.name)
    try:
        infer(model)
    except ModelError:
        return False
    return True
