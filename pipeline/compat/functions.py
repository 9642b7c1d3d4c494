"""What a session puts in the place of an operator that it has no kernel for, where ONNX defines that by others."""

from collections.abc import Callable

from pipeline.model import onnx_view, ort_format
from pipeline.model import types as onnx_types

IR_VERSION = 8


def expanded(node: ort_format.OrtNode, kind: Callable[[str], str], opset: int) -> ort_format.OrtModel | None:
    """The operators that define a node of a model with this opset, with the types of their values; None without them.

    `kind` gives the types of the node's values by name, as ONNX Runtime has them (float). None also where one of these
    is not known.
    """
    import onnx
    from onnx import helper, inliner

    codes = {
        name: onnx_types.CODES.get(onnx_types.SHORT_BY_ORT.get(kind(name), ""), 0)
        for name in (*node.inputs, *node.outputs)
        if name
    }
    if not all(codes.values()):
        return None
    proto = helper.make_node(node.op_type, node.inputs, node.outputs, node.name, domain=node.domain)
    for name, attribute in node.attributes.items():
        if isinstance(attribute.value, int | float | str | tuple) and attribute.value != ():
            proto.attribute.append(helper.make_attribute(name, attribute.value, attr_type=attribute.type))
    inputs = [helper.make_tensor_value_info(name, codes[name], None) for name in dict.fromkeys(node.inputs) if name]
    outputs = [helper.make_tensor_value_info(name, codes[name], None) for name in node.outputs if name]
    graph = helper.make_graph([proto], "function", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    try:
        inlined = inliner.inline_selected_functions(model, [(node.domain, node.op_type)], inline_schema_functions=True)
        typed = onnx.shape_inference.infer_shapes(inlined)
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        return None
    if [inner.op_type for inner in typed.graph.node] == [node.op_type]:
        return None
    return onnx_view.model_of(typed, node.op_type)
