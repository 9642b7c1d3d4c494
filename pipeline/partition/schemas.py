"""since_version and default attributes of operators, from ONNX's schemas (ep_rules A.4 opset, A.5)."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

DEFAULT_DOMAIN = ""

MICROSOFT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "GridSample": {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0},
    "QLinearAveragePool": {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "channels_last": 0,
        "count_include_pad": 0,
    },
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QuantizeLinear": {"axis": None},
}
"""Defaults of com.microsoft operators that a rule reads; ONNX's package does not know that domain."""


class Schema(NamedTuple):
    """What a node takes from its schema."""

    since_version: int
    defaults: Mapping[str, Any]


@lru_cache(maxsize=4096)
def schema(op_type: str, domain: str, opset: int) -> Schema:
    """The schema of an operator under an import; since_version 1 without defaults for ops that ONNX does not define.

    ONNX Runtime registers a few ops of its own in the default domain (LayerNormalization-1 and others): the same.
    """
    import onnx.defs

    try:
        found = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        own = MICROSOFT_DEFAULTS.get(op_type, {}) if domain == "com.microsoft" else _ORT_OWN.get(op_type, {})
        return Schema(1, MappingProxyType(dict(own)))
    defaults = {
        name: attribute_value(attribute.default_value)
        for name, attribute in found.attributes.items()
        if attribute.default_value.name
    }
    return Schema(found.since_version, MappingProxyType(defaults))


_ORT_OWN: Mapping[str, Mapping[str, Any]] = {
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
}


def attribute_value(attribute: Any) -> Any:
    """A plain attribute as int, float, str or a tuple of them; None for tensors, graphs and types."""
    kind = attribute.type
    if kind == 1:
        return attribute.f
    if kind == 2:
        return attribute.i
    if kind == 3:
        return attribute.s.decode("utf-8", "replace")
    if kind == 6:
        return tuple(attribute.floats)
    if kind == 7:
        return tuple(attribute.ints)
    if kind == 8:
        return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    return None
