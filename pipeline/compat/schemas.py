"""Versions of an operator that differ in the types alone that they take, as onnx defines them."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types

if TYPE_CHECKING:
    import onnx

TYPES_BY_NUMBER = frozenset({"to", "dtype", "output_dtype"})
"""Attributes that name a type of elements by its code."""

REWORDED = frozenset({"Transpose"})
"""Operators whose newer versions describe an attribute in other words alone."""


def same_but_types(name: str, older: int, newer: int, kinds: Collection[str]) -> bool:
    """Whether an operator of ONNX computes the same in both opsets on values of these types: tensor(float).

    Its text, attributes, inputs and outputs are the same, and what the newer one takes besides is none of the types.
    """
    from onnx import defs

    try:
        before, after = defs.get_schema(name, older), defs.get_schema(name, newer)
    except defs.SchemaError:
        return False
    if _form(before) != _form(after):
        return False
    taken = {constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in before.type_constraints}
    more = {
        kind
        for constraint in after.type_constraints
        for kind in set(constraint.allowed_type_strs) - taken.get(constraint.type_param_str, set())
    }
    return more.isdisjoint(kinds)


def _form(schema: "onnx.defs.OpSchema") -> tuple[object, ...]:
    words = schema.name not in REWORDED
    attributes = sorted(
        (
            attribute.name,
            str(attribute.type),
            str(attribute.default_value),
            attribute.required,
            words and attribute.description,
        )
        for attribute in schema.attributes.values()
    )
    values = [(value.name, str(value.option), value.type_str) for value in (*schema.inputs, *schema.outputs)]
    return schema.doc, attributes, values, len(schema.inputs), schema.min_input, schema.min_output


def kinds_of(proto: "onnx.ModelProto", inner: Collection[int] = ()) -> frozenset[str]:
    """Types of tensors that a model's values have or are computed to; `inner` are those that it does not declare."""
    return frozenset(
        f"tensor({onnx_types.ORT_NAMES[code]})" for code in {*inner, *_codes(proto)} if code in onnx_types.ORT_NAMES
    )


def _codes(proto: "onnx.ModelProto") -> Iterator[int]:
    for graph in onnx_edit.subgraphs(proto.graph):
        yield from (tensor.data_type for tensor in graph.initializer)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.type.tensor_type.elem_type
    for node in (*onnx_edit.all_nodes(proto.graph), *(node for function in proto.functions for node in function.node)):
        for attribute in node.attribute:
            yield attribute.i if attribute.name in TYPES_BY_NUMBER else attribute.t.data_type
