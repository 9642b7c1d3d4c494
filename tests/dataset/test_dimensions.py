"""Names of open dimensions mean the same in every command, and placeholders are no names."""

import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from device_runner.spec import ElementType
from pipeline.advice.fixes import MODEL_FIXES
from pipeline.core.errors import ConfigError
from pipeline.dataset import TensorInfo
from pipeline.model.onnx_model import fix_dimensions as fix
from pipeline.model.signature import resolve_dimensions
from pipeline.partition.answer import make_settings
from pipeline.partition.graph import view
from pipeline.passes.edit import GraphFacts
from tests.onnx_samples import parsed_nodes
from tests.values import present


def takes(**shapes: tuple[int | str | None, ...]) -> list[TensorInfo]:
    return [TensorInfo(name=name, dtype=ElementType.FLOAT32, shape=shape) for name, shape in shapes.items()]


PADDLE = takes(x=("?", 3, "?", "width"))


@pytest.mark.parametrize(
    ("inputs", "wanted", "sizes"),
    [
        (takes(x=("batch", 3)), {"batch": 2}, {"x[0]": 2}),
        (takes(x=("batch", 3)), {"x[0]": 2}, {"x[0]": 2}),
        (takes(x=(None, None)), {"x[1]": 2}, {"x[1]": 2}),
        (PADDLE, {"x[0]": 1, "x[2]": 48, "width": 320}, {"x[0]": 1, "x[2]": 48, "x[3]": 320}),
        (takes(x=("?", 3)), {"?": 5}, {"x[0]": 5}),
        (takes(x=("n", 3), y=("n",)), {"n": 4}, {"x[0]": 4, "y[0]": 4}),
        (takes(x=("n", 3), y=("n",)), {"x[0]": 4}, {"x[0]": 4, "y[0]": 4}),
        (takes(x=("n", 3), y=("n",)), {"x[0]": 4, "y[0]": 5}, {"x[0]": 4, "y[0]": 5}),
        (takes(x=("n", "n")), {"n": 4, "x[1]": 5}, {"x[0]": 4, "x[1]": 5}),
        (takes(x=("batch", 3)), {}, {}),
    ],
)
def test_names_become_sizes(inputs: list[TensorInfo], wanted: dict[str, int], sizes: dict[str, int]) -> None:
    assert resolve_dimensions(inputs, wanted, "m") == sizes


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"widht": 3}, "did you mean 'width'?"),
        ({"q": 3}, "open dimensions: x[0], x[2], width"),
        ({"x[1]": 3}, "fixes it to 3"),
        ({"x[9]": 3}, "did you mean"),
        ({"?": 3}, "x[0], x[2]"),
    ],
)
def test_other_names_are_refused(wanted: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_dimensions(PADDLE, wanted, "m.onnx")
    assert caught.value.where == "m.onnx"
    assert words in f"{caught.value.why} {caught.value.remedy}"


def test_a_model_without_open_dimensions_takes_no_size() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_dimensions(takes(x=(1, 3)), {"q": 3}, "m.onnx")
    assert caught.value.remedy == "leave it out: every dimension of this model has a size"


def paddle_model() -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["?", 3, "?", "?"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["?", 3, "?", "?"])
    graph = helper.make_graph(parsed_nodes("y = Relu (x)"), "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sizes_of(value: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_placeholders_of_one_name_get_sizes_of_their_own() -> None:
    model = paddle_model()
    fix(model, {"x[0]": 1, "x[2]": 48, "x[3]": 192}, "m")
    assert sizes_of(model.graph.input[0]) == [1, 3, 48, 192]
    assert sizes_of(model.graph.output[0]) == [0, 3, 0, 0]


def test_advice_fixes_them_by_the_same_names() -> None:
    model = paddle_model()
    known = GraphFacts(graph=view(model), settings=make_settings("nnapi"), sizes={"x[2]": 48, "x[3]": 192})
    (edit,) = [fix.edit for fix in MODEL_FIXES if fix.name == "fixed-dimensions"]
    assert edit
    changed = present(edit(model, known))
    assert sizes_of(changed.graph.input[0]) == [1, 3, 48, 192]
