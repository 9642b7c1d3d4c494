"""What stands before and behind a model: one graph that computes what the parts do, and what does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from pipeline.config import ModelConfig
from pipeline.config.app_data import Filter, Gives, ImageBytes, Takes
from pipeline.config.tables import ImageLayout, Step
from pipeline.core import ort_session
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import attach, label_file
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import PassContext
from pipeline.passes.registry import run_passes
from pipeline.passes.saving import write_model
from tests.features.app_data.samples import SIZE, classifier, labels

RGBA = Takes(image=ImageBytes.RGBA, filter=Filter.PILLOW_BILINEAR, divide=255)


def attached(model: onnx.ModelProto, folder: Path, takes: Takes | None = RGBA, gives: Gives | None = None) -> Any:
    """A session of the model behind the pass."""
    context = PassContext(folder=folder, where="m.onnx")
    made = attach.attach(
        LeanModel(proto=model, folder=folder, weights={}), attach.AttachOptions(takes=takes, gives=gives), context
    )
    write_model(made, folder / "made.onnx")
    return onnxruntime.InferenceSession(folder / "made.onnx", providers=["CPUExecutionProvider"])


def plain(model: onnx.ModelProto, values: Any) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: values})[0]


def picture() -> Any:
    return np.random.default_rng(3).integers(0, 256, (77, 101, 4), np.uint8)


def tensor_of(pixels: Any) -> Any:
    """By hand, of bytes that the pass gets."""
    resized = Image.fromarray(pixels[..., :3]).resize(SIZE[::-1], Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32).transpose(2, 0, 1)[None] / np.float32(255)


def test_bytes_become_labels(tmp_path: Path) -> None:
    gives = Gives(classes=str(labels(tmp_path)), softmax=True, top=3)
    session = attached(classifier(), tmp_path, gives=gives)
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("image", "tensor(uint8)", [1, "height", "width", 4])
    assert {output.name: output.shape for output in session.get_outputs()} == {"labels": [1, 3], "scores": [1, 3]}
    found, scores = session.run(None, {"image": picture()[None]})
    values = plain(classifier(), tensor_of(picture()))[0]
    best = np.argsort(-values)[:3]
    assert list(found[0]) == [f"class {number} é" for number in best]
    shares = np.exp(values - values.max()) / np.exp(values - values.max()).sum()
    np.testing.assert_allclose(scores[0], shares[best], atol=0.01)  # a pixel may differ by one from Pillow's


def test_one_end_alone_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    session = attached(classifier(), tmp_path)
    assert [output.name for output in session.get_outputs()] == ["logits"]
    values = session.run(None, {"image": picture()[None]})[0]
    np.testing.assert_allclose(values, plain(classifier(), tensor_of(picture())), atol=0.02)
    session = attached(classifier(), tmp_path, None, Gives(classes=str(labels(tmp_path))))
    assert [given.name for given in session.get_inputs()] == ["x"]
    assert len(session.run(["labels"], {"x": np.zeros((1, 3, *SIZE), np.float32)})[0][0]) == 5


def test_bodies_read_what_the_app_gives_too(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    m (float[1, 3, 32, 48] image) => (float y) {
        mean = ReduceMean<keepdims = 0>(image)
        zero = Constant<value = float {0}>()
        more = Greater(mean, zero)
        y = If(more) <
            then_branch = t () => (float a) { a = ReduceMax<keepdims = 0>(image) },
            else_branch = e () => (float b) { b = ReduceMin<keepdims = 0>(image) }>
    }"""
    session = attached(onnx.parser.parse_model(text), tmp_path)
    assert [given.name for given in session.get_inputs()] == ["image_2"]  # the model's own has that name
    (largest,) = session.run(None, {"image_2": picture()[None]})
    assert largest == pytest.approx(tensor_of(picture()).max(), abs=0.01)


def test_all_that_is_added_stays_float(tmp_path: Path) -> None:
    attached(classifier(), tmp_path, gives=Gives(classes=str(labels(tmp_path)), softmax=True))
    whole = onnx.load(tmp_path / "made.onnx")
    added = {node.name for node in whole.graph.node} - {node.name for node in classifier().graph.node}
    assert {name for name in added if name.startswith("app_data/")} == added - {""}
    model = LeanModel(proto=whole, folder=tmp_path, weights={})
    context = PassContext(folder=tmp_path, where="m.onnx")
    halved = run_passes(model, [Step(do="fp16")], context).model.proto
    by_name = {node.name: node for node in halved.graph.node}
    assert added - {""} <= by_name.keys()
    assert "Softmax" in {by_name[name].op_type for name in added - {""}}
    constants = {tensor.name: tensor.data_type for tensor in halved.graph.initializer}
    assert constants["kernel"] == onnx.TensorProto.FLOAT16
    assert constants["app_data/takes/divided by"] == onnx.TensorProto.FLOAT


def test_other_labels_are_another_pass(tmp_path: Path) -> None:
    table = ModelConfig(path="m.onnx", gives=Gives(classes=str(labels(tmp_path))))
    first = attach.attachment(table)
    labels(tmp_path, 3)
    assert first != attach.attachment(table)
    assert attach.attachment(ModelConfig(path="m.onnx")) is None


def test_labels_that_do_not_fit_classes_of_an_open_number_fail_the_first_run(tmp_path: Path) -> None:
    model = classifier()
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "classes"
    session = attached(model, tmp_path, None, Gives(classes=str(labels(tmp_path, 19))))
    with pytest.raises(ort_session.ort_errors(), match="cannot be reshaped"):
        session.run(None, {"x": np.zeros((1, 3, *SIZE), np.float32)})


def of_rows(count: int) -> onnx.ModelProto:
    """The classifier for so many pictures at once."""
    model = classifier()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = count
    return model


Change = Callable[[Path], "tuple[onnx.ModelProto, Takes | None, Gives | None]"]


def changed(**values: Any) -> Takes:
    return msgspec.structs.replace(RGBA, **values)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _: (classifier(13), RGBA, None), "opset 13 has not all that `takes.filter = pillow-bilinear` needs"),
        (lambda _: (classifier(), changed(resize=(64, 64)), None), "one image, 64 by 64, does not fit the input 'x'"),
        (lambda _: (classifier(), changed(resize="short 40"), None), "32 by 48 cannot be cut out of every picture"),
        (lambda _: (classifier(), changed(resize=(32, 40), crop=(32, 48)), None), "32 by 48 cannot be cut out"),
        (lambda _: (classifier(), changed(layout=ImageLayout.NHWC), None), "the input 'x' has 48 channels"),
        (lambda _: (of_rows(8), RGBA, None), "one image, 32 by 48, does not fit the input 'x'"),
        (lambda _: (classifier(), changed(input="y"), None), "the model has no 'y'"),
        (lambda folder: (classifier(), None, Gives(classes=str(labels(folder, 19)))), "19 labels do not fit"),
        (lambda folder: (classifier(), None, Gives(classes=str(folder / "none.txt"))), "the labels cannot be read"),
        (lambda folder: (classifier(), None, Gives(classes=str(labels(folder)), output="x")), "the model has no 'x'"),
    ],
    ids=["opset", "size", "short", "crop", "channels", "batch", "input", "labels", "file", "output"],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Change, what: str) -> None:
    model, takes, gives = change(tmp_path)
    with pytest.raises(ConfigError, match=what) as refusal:
        attached(model, tmp_path, takes, gives)
    assert refusal.value.remedy


def test_a_model_goes_through_it_once(tmp_path: Path) -> None:
    attached(classifier(), tmp_path)
    twice = onnx.load(tmp_path / "made.onnx")
    with pytest.raises(ConfigError, match="takes no image"):
        attached(twice, tmp_path)


def test_labels_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    gives = Gives(classes=str(file))
    file.write_bytes("\ufeffa\r\nb c\n".encode())
    assert label_file.names_of(gives) == ["a", "b c"]
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="a file of 0 labels"):
        label_file.names_of(gives)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        label_file.names_of(gives)


def test_characters_may_be_ends_of_lines_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "characters.txt"
    file.write_bytes("a\n \n\u2028\n\u3000\n".encode())
    assert label_file.names_of(Gives(text=str(file))) == ["a", " ", "\u2028", "\u3000"]
