"""What an app gets in place of tensors, against the same in numpy, on many heads that are made here."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from pipeline.config.app_data import BoxLayout, Filter, Gives, ImageBytes, MaskResize, Pool, Proportions, Takes
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import attach
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import PassContext
from pipeline.passes.saving import write_model

Shape = tuple[int | str, ...]


def computing(
    folder: Path, gives: Gives, *shape: int | str, mask: bool = False, metadata: dict[str, str] | None = None
) -> Callable[..., dict[str, Any]]:
    """A function of a model's output, of this shape, and of a mask of tokens where there is one."""
    inputs = [helper.make_tensor_value_info("head", 1, shape)]
    if mask:
        inputs.append(helper.make_tensor_value_info("attention_mask", 7, shape[:2]))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["head"], ["y"], name="model")],
        "m",
        inputs,
        [helper.make_tensor_value_info("y", 1, shape)],
    )
    return of_model(
        folder,
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        gives,
        metadata=metadata or {},
    )


def of_model(
    folder: Path,
    model: onnx.ModelProto,
    gives: Gives,
    takes: Takes | None = None,
    *,
    metadata: dict[str, str] | None = None,
) -> Callable[..., dict[str, Any]]:
    """A function of the inputs of a model behind the pass, by their places."""
    helper.set_model_props(model, metadata or {})
    made = attach.attach(
        LeanModel(proto=model, folder=folder, weights={}),
        attach.AttachOptions(takes=takes, gives=gives),
        PassContext(folder=folder, where="m.onnx"),
    )
    write_model(made, folder / "made.onnx")
    onnx.checker.check_model(str(folder / "made.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(folder / "made.onnx", providers=["CPUExecutionProvider"])
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    return lambda *values: dict(zip(outputs, session.run(None, dict(zip(inputs, values, strict=True))), strict=True))


# Boxes

PLACES, CLASSES = 400, 7


def head(generator: np.random.Generator, *, objectness: bool = False) -> Any:
    """[n, 4 + classes] or [n, 5 + classes] of a detector that sees up to 12 objects, each at several places."""
    rows = np.zeros((PLACES, 4 + objectness + CLASSES), np.float32)
    rows[:, :2], rows[:, 2:4] = generator.uniform(0, 640, (PLACES, 2)), generator.uniform(5, 60, (PLACES, 2))
    rows[:, 4 + objectness :] = generator.uniform(0, 0.3, (PLACES, CLASSES))
    for _ in range(generator.integers(0, 13)):
        places = generator.integers(0, PLACES, generator.integers(2, 12))
        rows[places, :2] = generator.uniform(60, 580, 2) + generator.normal(0, 6, (len(places), 2))
        rows[places, 2:4] = generator.uniform(20, 200, 2) * generator.uniform(0.7, 1.3, (len(places), 2))
        rows[places, 4 + objectness + generator.integers(CLASSES)] = generator.uniform(0.2, 0.95, len(places))
    if objectness:
        rows[:, 4] = generator.uniform(0.3, 1, PLACES)
    return rows


def shared(box: Any, others: Any) -> Any:
    """Of what a box and each other cover together, the share that both cover."""
    first, last = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = np.prod(np.maximum(last - first, 0), 1)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], 1) for boxes in (box[None], others)]
    return both / (areas[0] + areas[1] - both)


def suppressed(rows: Any, gives: Gives, *, objectness: bool = False) -> tuple[Any, Any, Any]:
    """Corners, values and classes by numpy: what is above `score`, of a class the best first without what it covers."""
    values = rows[:, 4 + objectness :] * (rows[:, 4:5] if objectness else np.float32(1))
    classes, best = values.argmax(1), values.max(1)
    half = rows[:, 2:4] * np.float32(0.5)
    corners = np.concatenate([rows[:, :2] - half, rows[:, :2] + half], 1)
    kept: list[int] = []
    for number in range(CLASSES):
        places = np.flatnonzero((best > np.float32(gives.score)) & (classes == number))
        places = places[np.argsort(-best[places], kind="stable")]
        while len(places):
            kept.append(places[0])
            places = places[1:][shared(corners[places[0]], corners[places[1:]]) <= np.float32(gives.overlap)]
    order = np.array(kept, int)
    order = order[np.argsort(-best[order], kind="stable")][: gives.most]
    return corners[order], best[order], classes[order]


def differing_heads(folder: Path, count: int) -> Iterator[int]:
    """The numbers of heads whose boxes are not numpy's."""
    generator = np.random.default_rng(0)
    gives = Gives(boxes=True, most=20)
    compute = computing(folder, gives, 1, 4 + CLASSES, PLACES)
    for number in range(count):
        rows = head(generator)
        made = compute(np.ascontiguousarray(rows.T[None]))
        corners, values, classes = suppressed(rows, gives)
        same = np.array_equal(made["scores"], values) and np.array_equal(made["classes"], classes)
        if not same or not np.array_equal(made["boxes"], corners):
            yield number


def test_boxes_are_numpys(tmp_path: Path) -> None:
    assert list(differing_heads(tmp_path, 200)) == []


@pytest.mark.slow
def test_boxes_of_many_heads_are_numpys(tmp_path: Path) -> None:
    assert list(differing_heads(tmp_path, 10_000)) == []


def test_boxes_with_objectness_and_labels(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    names = [f"thing {number} é" for number in range(CLASSES)]
    (tmp_path / "labels.txt").write_text("\n".join(names), "utf-8")
    layout = BoxLayout.XYWH_OBJECTNESS_CLASSES
    gives = Gives(boxes=str(tmp_path / "labels.txt"), layout=layout, score=0.4, overlap=0.6)
    compute = computing(tmp_path, gives, 1, PLACES, "values")
    for _ in range(200):
        rows = head(generator, objectness=True)
        made = compute(rows[None])
        corners, values, classes = suppressed(rows, gives, objectness=True)
        assert np.array_equal(made["scores"], values)
        assert np.array_equal(made["boxes"], corners)
        assert [*made["labels"]] == [names[number] for number in classes]


def test_boxes_that_the_model_chose(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    gives = Gives(boxes=True, layout=BoxLayout.XYXY_SCORE_CLASS, score=0.5, most=10)
    compute = computing(tmp_path, gives, 1, 50, 6)
    for count in range(200):
        rows = generator.uniform(0, 640, (50, 6)).astype(np.float32)
        rows[:, 4], rows[:, 5] = generator.uniform(0, 0.4 if count < 5 else 1, 50), generator.integers(0, 80, 50)
        made = compute(rows[None])
        good = rows[rows[:, 4] > 0.5]
        good = good[np.argsort(-good[:, 4], kind="stable")][:10]
        assert np.array_equal(made["boxes"], good[:, :4])
        assert np.array_equal(made["scores"], good[:, 4])
        assert np.array_equal(made["classes"], good[:, 5].astype(np.int64))


def test_no_box_is_no_failure(tmp_path: Path) -> None:
    made = computing(tmp_path, Gives(boxes=True), 1, 4 + CLASSES, 9)(np.zeros((1, 4 + CLASSES, 9), np.float32))
    assert {name: value.shape for name, value in made.items()} == {"boxes": (0, 4), "scores": (0,), "classes": (0,)}


def boxes_model() -> onnx.ModelProto:
    """One that finds, whatever it sees of 64 by 96, a box from 24, 16 to 72, 48, and one that is all of it."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    m (float[1, 3, 64, 96] x) => (float[1, 2, 6] boxes_of_it) {
        none = Constant<value_float = 0.0>()
        zero = Mul(x, none)
        least = ReduceMax<keepdims = 0>(zero)
        boxes_of_it = Add(found, least)
    }"""
    model = onnx.parser.parse_model(text)
    found = np.array([[[24, 16, 72, 48, 0.9, 3], [0, 0, 96, 64, 0.5, 1]]], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(found, "found"))
    return model


TAKES = Takes(image=ImageBytes.RGB, filter=Filter.OPENCV_LINEAR)


def replaced(**values: Any) -> Takes:
    return Takes(image=ImageBytes.RGB, filter=Filter.OPENCV_LINEAR, **values)


def stretched(box: Any, height: int, width: int) -> Any:
    return box * [width / 96, height / 64] * 1.0


def letterboxed(box: Any, height: int, width: int) -> Any:
    ratio = min(64 / height, 96 / width)
    margin = [round((length - round(own * ratio)) / 2 - 0.1) for length, own in ((96, width), (64, height))]
    return (box - margin) / ratio


def cut_out(box: Any, height: int, width: int) -> Any:
    """Of the short side to 100, then the middle."""
    short = min(height, width)
    size = [int(100 * width / short), int(100 * height / short)]
    start = np.array([round((size[0] - 96) / 2), round((size[1] - 64) / 2)])
    return (box + start) * [width / size[0], height / size[1]]


def stretched_and_cut(box: Any, height: int, width: int) -> Any:
    start = np.array([(130 - 96) / 2, (80 - 64) / 2])
    return (box + start) * [width / 130, height / 80]


@pytest.mark.parametrize(
    ("takes", "placed"),
    [
        (replaced(), stretched),
        (replaced(fit=Proportions.LETTERBOX), letterboxed),
        (replaced(resize="short 100", crop=(64, 96)), cut_out),
        (replaced(resize=(80, 130), crop=(64, 96)), stretched_and_cut),
    ],
    ids=["stretch", "letterbox", "short", "crop"],
)
def test_boxes_are_in_the_apps_picture(tmp_path: Path, takes: Takes, placed: Callable[..., Any]) -> None:
    gives = Gives(boxes=True, layout=BoxLayout.XYXY_SCORE_CLASS)
    compute = of_model(tmp_path, boxes_model(), gives, takes)
    for height, width in ((128, 192), (300, 500), (64, 48), (31, 200), (600, 133), (97, 1001)):
        made = compute(np.zeros((1, height, width, 3), np.uint8))
        corners = np.array([[[24, 16], [72, 48]], [[0, 0], [96, 64]]], float)
        wanted = np.clip([placed(pair, height, width) for pair in corners], 0, [width, height]).reshape(2, 4)
        np.testing.assert_allclose(made["boxes"], wanted, atol=2e-3)
        assert np.array_equal(made["classes"], [3, 1])


# Text

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read(values: Any, characters: list[str], blank: int) -> tuple[list[str], list[float]]:
    """CTC, greedy: the best of each step, where it is another than that before and no blank."""
    best = values.argmax(1)
    kept = [at for at, number in enumerate(best) if number != blank and (at == 0 or number != best[at - 1])]
    return [characters[best[at]] for at in kept], [values[at, best[at]] for at in kept]


def differing_texts(folder: Path, count: int) -> Iterator[int]:
    file = folder / "characters.txt"
    file.write_text("\n".join(CHARACTERS), "utf-8")
    compute = computing(folder, Gives(text=str(file), blank=-1), "steps", 1, len(CHARACTERS) + 1)
    generator = np.random.default_rng(0)
    for number in range(count):
        values = generator.standard_normal((generator.integers(1, 60), len(CHARACTERS) + 1)).astype(np.float32)
        values[:, -1] += generator.uniform(0, 4)
        values = np.repeat(values, generator.integers(1, 4), 0)
        made = compute(values[:, None])
        text, scores = read(values, [*CHARACTERS, ""], len(CHARACTERS))
        if [*made["text"]] != text or not np.array_equal(made["scores"], np.array(scores, np.float32)):
            yield number


def test_texts_are_numpys(tmp_path: Path) -> None:
    assert list(differing_texts(tmp_path, 300)) == []


@pytest.mark.slow
def test_many_texts_are_numpys(tmp_path: Path) -> None:
    assert list(differing_texts(tmp_path, 10_000)) == []


@pytest.mark.parametrize("more", [1, 2], ids=["as they are", "with a space"])
def test_characters_of_the_models_own(tmp_path: Path, more: int) -> None:
    """As PaddleOCR keeps them: the blank is number 0, and a space may stand behind all."""
    compute = computing(
        tmp_path, Gives(text=True, softmax=True), 1, "steps", 3 + more, metadata={"character": "a\nb\nc"}
    )
    values = np.full((1, 6, 3 + more), -9, np.float32)
    for step, number in enumerate([1, 1, 0, 1, 2 + more, 0]):
        values[0, step, number] = 9
    made = compute(values)
    assert "".join(made["text"]) == ("aac" if more == 1 else "aa ")
    assert made["scores"].min() > 0.99


def test_a_text_of_nothing(tmp_path: Path) -> None:
    values = np.zeros((1, 5, 4), np.float32)
    values[..., 0] = 1
    made = computing(tmp_path, Gives(text=True), 1, 5, 4, metadata={"character": "a\nb\nc"})(values)
    assert (list(made["text"]), made["scores"].shape) == ([], (0,))


# Embeddings


@pytest.mark.parametrize("masked", [False, True])
def test_means_of_the_tokens_that_count(tmp_path: Path, masked: bool) -> None:
    gives = Gives(embedding=True, pool=Pool.MEAN, normalize=True)
    compute = computing(tmp_path, gives, "batch", "tokens", 48, mask=masked)
    generator = np.random.default_rng(0)
    for _ in range(200):
        batch, length = generator.integers(1, 4), generator.integers(1, 40)
        values = generator.standard_normal((batch, length, 48)).astype(np.float32)
        counts = (
            np.arange(length)[None] < generator.integers(1, length + 1, (batch, 1))
            if masked
            else np.ones((batch, length))
        )
        made = compute(values, *([counts.astype(np.int64)] if masked else []))["embedding"]
        means = (values.astype(float) * counts[..., None]).sum(1) / counts.sum(1)[:, None]
        np.testing.assert_allclose(made, means / np.linalg.norm(means, axis=1)[:, None], atol=1e-6)


@pytest.mark.parametrize(
    ("gives", "shape", "wanted"),
    [
        (Gives(embedding=True, pool=Pool.CLS), (2, 5, 8), lambda values: values[:, 0]),
        (Gives(embedding=True), (2, 8), lambda values: values),
        (
            Gives(embedding=True, normalize=True),
            (2, 8),
            lambda values: values / np.linalg.norm(values, axis=1)[:, None],
        ),
        (Gives(embedding=True, pool=Pool.MEAN), (1, 8, 3, 4), lambda values: values.mean((2, 3))),
    ],
    ids=["cls", "none", "normalize", "picture"],
)
def test_rows_that_are_compared(
    tmp_path: Path, gives: Gives, shape: tuple[int, ...], wanted: Callable[[Any], Any]
) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(computing(tmp_path, gives, *shape)(values)["embedding"], wanted(values), atol=1e-6)


# Masks


def linear(values: Any, size: tuple[int, int]) -> Any:
    """As torch.nn.functional.interpolate(mode="bilinear", align_corners=False), of [classes, height, width]."""
    for axis, length in ((1, size[0]), (2, size[1])):
        old = values.shape[axis]
        places = np.clip((np.arange(length) + 0.5) * old / length - 0.5, 0, old - 1)
        low = np.floor(places).astype(int)
        share = (places - low).reshape([-1 if number == axis else 1 for number in range(3)])
        values = (1 - share) * values.take(low, axis) + share * values.take(np.minimum(low + 1, old - 1), axis)
    return values


def nearest(values: Any, size: tuple[int, int]) -> Any:
    rows, columns = (np.arange(length) * old // length for length, old in zip(size, values.shape[1:], strict=True))
    return values[:, rows][:, :, columns]


def masking(values: Any) -> onnx.ModelProto:
    """One that gives these values of an image of 64 by 96."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    m (float[1, 3, 64, 96] x) => (float[1, C, H, W] y) {
        none = Constant<value_float = 0.0>()
        zero = Mul(x, none)
        least = ReduceMax<keepdims = 0>(zero)
        y = Add(values, least)
    }"""
    for name, size in zip("CHW", values.shape, strict=True):
        text = text.replace(f" {name},", f" {size},").replace(f" {name}]", f" {size}]")
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values[None], "values"))
    return model


SIDES = ((128, 192), (300, 500), (64, 48), (131, 200))


@pytest.mark.parametrize("resize", MaskResize)
@pytest.mark.parametrize("classes", [1, 5])
def test_masks_are_as_large_as_the_picture(tmp_path: Path, resize: MaskResize, classes: int) -> None:
    values = np.random.default_rng(0).standard_normal((classes, 16, 24)).astype(np.float32)
    compute = of_model(tmp_path, masking(values), Gives(mask=True, resize=resize, sigmoid=classes == 1), TAKES)
    for height, width in SIDES:
        made = compute(np.zeros((1, height, width, 3), np.uint8))["mask"]
        assert (made.shape, made.dtype) == ((height, width), np.uint8)
        large = (linear if resize is MaskResize.LINEAR else nearest)(values, (height, width))
        wanted = large.argmax(0) if classes > 1 else large[0] > 0
        assert np.mean(made != wanted) < 2e-3  # places where two are as large as each other, but for the last digit


def test_a_mask_is_none_of_what_a_letterbox_filled_up(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((4, 32, 48)).astype(np.float32)
    compute = of_model(tmp_path, masking(values), Gives(mask=True), replaced(fit=Proportions.LETTERBOX))
    for height, width in SIDES:
        made = compute(np.zeros((1, height, width, 3), np.uint8))["mask"]
        ratio = min(64 / height, 96 / width)
        size = round(height * ratio), round(width * ratio)
        top, left = (round((length - own) / 2 - 0.1) for length, own in zip((64, 96), size, strict=True))
        inside = linear(values, (64, 96))[:, top : top + size[0], left : left + size[1]]
        assert np.mean(made != linear(inside, (height, width)).argmax(0)) < 2e-3


def test_a_mask_of_a_part_is_refused(tmp_path: Path) -> None:
    values = np.zeros((4, 32, 48), np.float32)
    with pytest.raises(ConfigError, match="gives no mask of the picture"):
        of_model(tmp_path, masking(values), Gives(mask=True), replaced(resize="short 100", crop=(64, 96)))


# Probabilities


@pytest.mark.parametrize(
    ("gives", "shape", "wanted"),
    [
        (Gives(probability=True), (1, 1), lambda values: values[0, 0]),
        (Gives(probability=True, sigmoid=True), (1, 1, 1), lambda values: 1 / (1 + np.exp(-values[0, 0, 0]))),
        (Gives(probability=True, index=2), (1, 4), lambda values: values[0, 2]),
        (
            Gives(probability=True, index=1, softmax=True),
            (1, 2),
            lambda values: np.exp(values[0, 1]) / np.exp(values).sum(),
        ),
        (Gives(probability=True, index=1, sigmoid=True), (1, "n"), lambda values: 1 / (1 + np.exp(-values[0, 1]))),
    ],
    ids=["one", "sigmoid", "index", "softmax", "open"],
)
def test_one_number(tmp_path: Path, gives: Gives, shape: Shape, wanted: Callable[[Any], Any]) -> None:
    compute = computing(tmp_path, gives, *shape)
    generator = np.random.default_rng(0)
    for _ in range(100):
        values = generator.standard_normal([3 if isinstance(size, str) else size for size in shape]).astype(np.float32)
        made = compute(values)["probability"]
        assert made.shape == (1,)
        np.testing.assert_allclose(made[0], wanted(values), atol=1e-6)


# What does not fit


@pytest.mark.parametrize(
    ("gives", "shape", "what"),
    [
        (Gives(boxes=True), (1, 84), "the output 'y' has no boxes"),
        (Gives(boxes=True), (1, 4, 8400), "the output 'y' has no boxes of the layout xywh"),
        (Gives(boxes=True), (1, "values", 8400), "the output 'y' has no boxes of the layout xywh"),
        (Gives(boxes=True, layout=BoxLayout.XYXY_SCORE_CLASS), (1, 84, 8400), "no boxes of the layout xyxy"),
        (Gives(text=True), (1, 5, 4), "the model has no characters of its own"),
        (Gives(embedding=True), (1, 5, 4), "no embedding with `pool` none"),
        (Gives(embedding=True, pool=Pool.MEAN), (1, 5), "no embedding with `pool` mean"),
        (Gives(embedding=True, pool=Pool.MEAN, counts="mask"), (1, 5, 4), "the model has no 'mask'"),
        (Gives(mask=True), (1, 5), "the output 'y' has no values for the classes of pixels"),
        (Gives(mask=True), (1, 300, 5, 5), "the output 'y' gives no mask of the picture"),
        (Gives(probability=True), (1, 2), "which value of the output 'y' is meant is not said"),
        (Gives(probability=True, softmax=True), (1, 1), "which value of the output 'y' is meant is not said"),
        (Gives(probability=True, index=2), (1, 2), "the output 'y' has no value 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, gives: Gives, shape: Shape, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refusal:
        computing(tmp_path, gives, *shape)
    assert refusal.value.remedy


def test_labels_and_characters_are_as_many_as_classes(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("a\nb\n", "utf-8")
    with pytest.raises(ConfigError, match="no boxes of the layout") as refusal:
        computing(tmp_path, Gives(boxes=str(file)), 1, 7, 10)
    assert "4 \\+ 2 labels" in str(refusal.value.why) or "4 + 2 labels" in refusal.value.why
    with pytest.raises(ConfigError, match="2 characters do not fit the output 'y'"):
        computing(tmp_path, Gives(text=str(file)), 1, 5, 4)


def test_a_value_inside_a_model_may_have_the_name_of_an_answer(tmp_path: Path) -> None:
    inner = [helper.make_node("Neg", ["head"], ["embedding"]), helper.make_node("Neg", ["embedding"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in ("head", "y")]
    graph = helper.make_graph(inner, "m", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    head = np.array([[1, -2, 3, 4]], np.float32)
    assert np.array_equal(of_model(tmp_path, model, Gives(embedding=True))(head)["embedding"], head)
    named = helper.make_graph([helper.make_node("Neg", ["embedding"], ["y"])], "m", values[:1], values[1:])
    named.input[0].name = "embedding"
    model = helper.make_model(named, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    with pytest.raises(ConfigError, match="the model has a value called 'embedding'"):
        of_model(tmp_path, model, Gives(embedding=True))
