"""Candidates that compute something else: the default budget refuses each of them, whatever output is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.accuracy.evaluate import AccuracyRequest, evaluate_model
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy, DropVerdict
from pipeline.accuracy.score import score
from pipeline.config import AccuracyConfig
from pipeline.config.tables import OutputBudget
from pipeline.core.errors import ConfigError, ModelError
from pipeline.dataset import Dataset, Sample
from pipeline.model.sources import SourceModel
from tests.command import ort_mobile

SAMPLES = 400
OUTPUTS = {"probabilities": [1, 5], "boxes": [1, 4], "speed": [1, 1], "label": [1]}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

Model = onnx.ModelProto
Change = Callable[[Model], None]


def detector() -> Model:
    """Classes, boxes, one number and the number of the class: what apps read of a model in four outputs."""
    random = np.random.default_rng(0)
    weights = {"w": (32, 5), "v": (32, 4), "u": (32, 1)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
        helper.make_node("MatMul", ["x", "v"], ["boxes"]),
        helper.make_node("MatMul", ["x", "u"], ["raw"]),
        helper.make_node("Sigmoid", ["raw"], ["speed"]),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "detector", [helper.make_tensor_value_info("x", FLOAT, [1, 32])],
        [helper.make_tensor_value_info(n, INT64 if n == "label" else FLOAT, shape) for n, shape in OUTPUTS.items()],
        [numpy_helper.from_array(random.standard_normal(shape).astype("f") / 2, n) for n, shape in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def after(output: str, *nodes: tuple[str, object]) -> Change:
    """Operators behind an output, each with its second input."""

    def change(model: Model) -> None:
        graph = model.graph
        for node in graph.node:
            node.output[:] = ["sound" if name == output else name for name in node.output]
        current = "sound"
        for number, (operator, second) in enumerate(nodes):
            name = output if number == len(nodes) - 1 else f"step{number}"
            graph.initializer.append(numpy_helper.from_array(np.asarray(second), f"second{number}"))
            graph.node.append(helper.make_node(operator, [current, f"second{number}"], [name]))
            current = name

    return change


def scaled(output: str, factor: float) -> Change:
    return after(output, ("Mul", np.float32(factor)))


def permuted(output: str) -> Change:
    count = OUTPUTS[output][-1]
    return after(output, ("MatMul", np.roll(np.eye(count, dtype="f"), 1, axis=1)))


def other_weights(name: str) -> Change:
    def change(model: Model) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        values = np.random.default_rng(9).standard_normal(tuple(tensor.dims)).astype("f")
        tensor.CopyFrom(numpy_helper.from_array(values / 2, name))

    return change


CORRUPTED: dict[str, Change] = {
    **{f"{output} times {factor:g}": scaled(output, factor)
       for output in ("probabilities", "boxes", "speed") for factor in (0.1, 2, -1)},
    "classes permuted": permuted("probabilities"),
    "boxes permuted": permuted("boxes"),
    "boxes of other weights": other_weights("v"),
    "speed of other weights": other_weights("u"),
    "classes of other weights": other_weights("w"),
    "boxes zeroed": scaled("boxes", 0),
    "speed zeroed": scaled("speed", 0),
    "classes constant": after("probabilities", ("Mul", np.float32(0)), ("Add", np.float32(0.2))),
    "boxes moved": after("boxes", ("Add", np.float32(3))),
    "boxes NaN": after("boxes", ("Mul", np.float32(np.nan))),
    "speed NaN on some": after("speed", ("Sub", np.float32(0.5)), ("Pow", np.float32(0.5))),
    "label shifted by one": after("label", ("Add", np.int64(1))),
    "labels permuted": after("label", ("Add", np.int64(2)), ("Mod", np.int64(5))),
    "label constant": after("label", ("Mul", np.int64(0))),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corrupted")
    onnx.save(detector(), str(folder / "sound.onnx"))
    (folder / "some_samples.py").write_text(
        "import numpy\ndef inputs():\n    random = numpy.random.default_rng(1)\n"
        f"    for _ in range({SAMPLES}):\n        yield {{'x': random.standard_normal((1, 32)).astype('f')}}\n"
    )
    return folder


def judged(folder: Path, change: Change, accuracy: AccuracyConfig) -> AccuracyResult:
    model = detector()
    change(model)
    onnx.save(model, str(folder / "candidate.onnx"))
    return evaluate_model(AccuracyRequest(
        model=str(folder / "candidate.onnx"), reference=SourceModel(path=str(folder / "sound.onnx")),
        data=Dataset(test_data=str(folder / "some_samples:inputs")), accuracy=accuracy, work_folder=str(folder),
    ))  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTED)
def test_a_corrupted_candidate_is_refused_by_the_default_budget(folder: Path, name: str) -> None:
    assert judged(folder, CORRUPTED[name], AccuracyConfig(max_drop=0.01)).refused


def typed(output: str, element_type: int, shape: list[int]) -> Change:
    """An output of the same values as another tensor."""

    def change(model: Model) -> None:
        after(output, ("Reshape", np.array(shape)))(model)
        model.graph.node[-1].output[:] = ["reshaped"]
        model.graph.node.append(helper.make_node("Cast", ["reshaped"], [output], to=element_type))
        (value,) = (value for value in model.graph.output if value.name == output)
        value.CopyFrom(helper.make_tensor_value_info(output, element_type, shape))

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (typed("boxes", FLOAT, [4, 1]), "tensor(float) [4, 1] instead of tensor(float) [1, 4]"),
        (typed("label", TensorProto.INT32, [1]), "tensor(int32) [1] instead of tensor(int64) [1]"),
        (typed("speed", TensorProto.INT64, [1, 1]), "tensor(int64) [1, 1] instead of tensor(float) [1, 1]"),
    ],
)
def test_an_output_that_is_another_tensor_is_refused(folder: Path, change: Change, why: str) -> None:
    with pytest.raises(ModelError) as caught:
        judged(folder, change, AccuracyConfig())
    assert caught.value.why == why


def test_as_many_elements_as_the_values_want_are_no_other_tensor(folder: Path) -> None:
    """A detector with its suppression inside finds a box more in 8 bits: that is measured, not refused."""
    for name, least in (("few", 0.5), ("more", 0.4)):
        nodes = [
            helper.make_node("Constant", [], ["least"], value_float=least),
            helper.make_node("Greater", ["x", "least"], ["above"]),
            helper.make_node("NonZero", ["above"], ["places"]),
            helper.make_node("Cast", ["places"], ["y"], to=FLOAT),
        ]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [1, 32])],
            [helper.make_tensor_value_info("y", FLOAT, [2, "found"])],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
                  str(folder / f"{name}.onnx"))  # fmt: skip
    result = evaluate_model(AccuracyRequest(
        model=str(folder / "more.onnx"), reference=SourceModel(path=str(folder / "few.onnx")),
        data=Dataset(test_data=str(folder / "some_samples:inputs")), work_folder=str(folder),
    ))  # fmt: skip
    assert result.samples == SAMPLES
    (told,) = (finding.what for finding in result.findings if "shape" in finding.what)
    assert told.startswith("the output 'y' has another shape than the original's on ")


def test_a_sound_candidate_is_within_and_the_floor_needs_no_budget(folder: Path) -> None:
    nearly = judged(folder, scaled("boxes", 0.99), AccuracyConfig(max_drop=0.01))
    assert (nearly.refused, nearly.verdict, nearly.unjudged) == (False, DropVerdict.WITHIN, ())
    far = judged(folder, scaled("boxes", 0.1), AccuracyConfig())
    assert far.below_floor == "output boxes: 0.9 dB from float"
    assert not judged(folder, scaled("boxes", 0.8), AccuracyConfig()).refused


def test_a_budget_or_a_metric_that_is_asked_for_allows_what_the_floor_does_not(folder: Path) -> None:
    half = scaled("boxes", 0.5)  # a quarter of the power is lost, 6 dB from float
    assert judged(folder, half, AccuracyConfig(max_drop=0.01)).over
    assert not judged(folder, half, AccuracyConfig(max_drop=0.3)).refused
    assert not judged(folder, half, AccuracyConfig(max_drop=0.01, metric="cosine")).refused
    assert judged(folder, half, AccuracyConfig(metric="cosine")).refused


def test_outputs_have_budgets_metrics_and_weights_of_their_own(folder: Path) -> None:
    half, boxes = scaled("boxes", 0.5), OutputBudget
    left_out = judged(folder, half, AccuracyConfig(max_drop=0.01, outputs={"boxes": boxes(weight=0)}))
    assert (left_out.refused, left_out.unjudged) == (False, ("boxes",))
    assert not judged(folder, half, AccuracyConfig(max_drop=0.01, outputs={"boxes": boxes(max_drop=0.3)})).refused
    assert not judged(folder, half, AccuracyConfig(max_drop=0.01, outputs={"boxes": boxes(weight=0.03)})).refused
    assert not judged(folder, half, AccuracyConfig(max_drop=0.01, outputs={"boxes": boxes(metric="cosine")})).refused
    only = judged(folder, scaled("speed", 0.9), AccuracyConfig(outputs={"speed": boxes(max_drop=0.01)}))
    assert (only.refused, only.output, only.metric) == (True, "speed", "r2")
    alone = judged(folder, half, AccuracyConfig(max_drop=0.01, output="label"))
    assert (alone.refused, alone.unjudged) == (False, ("probabilities", "boxes", "speed"))


@pytest.mark.parametrize(
    ("accuracy", "place"),
    [
        (AccuracyConfig(output="box"), "accuracy.output"),
        (AccuracyConfig(outputs={"box": OutputBudget(weight=2)}), "accuracy.outputs"),
        (AccuracyConfig(outputs={"box": OutputBudget(max_drop=0.1)}), "accuracy.outputs"),
    ],
)
def test_an_output_that_is_not_there_is_an_error_with_those_that_are(
    folder: Path, accuracy: AccuracyConfig, place: str
) -> None:
    with pytest.raises(ConfigError, match="no output 'box'") as caught:
        judged(folder, lambda _: None, accuracy)
    assert place in caught.value.where
    assert "probabilities, boxes, speed, label" in caught.value.why


def test_without_evaluation_data_the_check_decides_on_the_floor() -> None:
    far = ArtifactAccuracy(model="m", variant="v", why="there are no evaluation data", sqnr_db=-19.8)
    assert far.refused(None) == "is too far from float (-19.8 dB; at least 10 dB without a budget)"
    assert not ArtifactAccuracy(model="m", variant="v", why="there are no data", sqnr_db=12.0).refused(None)


# --- values of different scale ----------------------------------------------------------------------------------------

LAYOUTS = ("[1, 84, N]", "[1, N, 85]", "[N, 6]", "[1, 39, N]")
BOXES = 4


def detections(layout: str, seed: int, *, positives: bool = True) -> np.ndarray:
    """Channels first, [C, N]: boxes in pixels, and scores that are mostly near 0; with a class number or masks."""
    random = np.random.default_rng(seed)
    places = 200
    boxes = random.uniform(0, 640, (BOXES, places))
    classes = {"[1, 84, N]": 80, "[1, N, 85]": 81, "[N, 6]": 1, "[1, 39, N]": 3}[layout]
    scores = random.uniform(0, 0.004, (classes, places))
    if positives:
        found = random.integers(0, classes, 20), random.permutation(places)[:20]
        scores[found] = random.uniform(0.3, 0.95, 20)
    rest = {"[N, 6]": random.integers(0, 80, (1, places)), "[1, 39, N]": random.normal(0, 0.6, (32, places))}
    return np.concatenate([boxes, scores, rest.get(layout, np.zeros((0, places)))])


def scores_zeroed(channels: np.ndarray, layout: str) -> np.ndarray:
    channels[BOXES : 7 if layout == "[1, 39, N]" else 5 if layout == "[N, 6]" else None] = 0
    return channels


def scores_permuted(channels: np.ndarray, layout: str) -> np.ndarray:
    place = 5 if layout == "[N, 6]" else slice(BOXES, 7 if layout == "[1, 39, N]" else None)
    channels[place] = 79 - channels[place] if layout == "[N, 6]" else np.roll(channels[place], 1, axis=0)
    return channels


def in_one_int8_scale(channels: np.ndarray, layout: str) -> np.ndarray:
    step = 640 / 255
    return np.round(channels / step) * step


def in_int8_by_branch(channels: np.ndarray, layout: str) -> np.ndarray:
    steps = np.where(np.arange(len(channels)) < BOXES, 640, 80 if layout == "[N, 6]" else 1)[:, None] / 255
    steps[BOXES] = 1 / 255
    return np.round(channels / steps) * steps


def in_half(channels: np.ndarray, layout: str) -> np.ndarray:
    return channels.astype(np.float16).astype(np.float32)


Corruption = Callable[[np.ndarray, str], np.ndarray]


def judged_detections(
    layout: str, change: Corruption, budget: float | None = 0.01, *, positives: bool = True
) -> AccuracyResult:
    def output(channels: np.ndarray) -> np.ndarray:
        array = channels.astype(np.float32)
        return array.T if layout == "[N, 6]" else array.T[None] if layout == "[1, N, 85]" else array[None]

    answers = []
    for number in range(20):
        channels = detections(layout, number, positives=positives)
        sample = Sample(name=f"s{number}", inputs={}, expected=[("output0", output(channels))])
        answers.append((sample, {"output0": output(change(channels.copy(), layout))}))
    return score(answers, "m", AccuracyConfig(max_drop=budget), "d")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", [scores_zeroed, scores_permuted, in_one_int8_scale])
@pytest.mark.parametrize("budget", [0.01, None])
def test_scores_that_are_lost_beside_exact_boxes_are_seen(
    layout: str, change: Corruption, budget: float | None
) -> None:
    found = judged_detections(layout, change, budget)
    assert found.refused
    (drift,) = found.outputs
    assert drift.sqnr_db is None or drift.sqnr_db > 20  # all that the output as a whole shows
    assert found.channels == drift.channels
    assert "of the output output0, channel" in found.of_output


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", [in_half, in_int8_by_branch])
def test_sound_detections_of_another_precision_are_within(layout: str, change: Corruption) -> None:
    found = judged_detections(layout, change)
    assert (found.refused, found.verdict) == (False, DropVerdict.WITHIN)


def test_the_channels_that_decide_are_named() -> None:
    zeroed = judged_detections("[N, 6]", scores_zeroed)
    assert zeroed.channels == "channel 4"
    assert zeroed.outputs[0].below_floor == "0.0 dB from float in channel 4"


def test_scores_without_a_detection_are_said_not_to_be_judged() -> None:
    found = judged_detections("[1, 84, N]", in_one_int8_scale, positives=False)
    assert not found.refused
    assert found.unjudged == ("output0, channels 4 to 83 (hardly vary, at most 0.004: no positives?)",)


def test_an_output_in_one_scale_has_no_parts() -> None:
    random = np.random.default_rng(0)
    shares = random.dirichlet([5, 0.1, 0.01], (4, 1, 30)).transpose(0, 1, 3, 2)[:, 0].astype(np.float32)
    answers = [(Sample(name="s", inputs={}, expected=[("map", array[None])]), {"map": array[None]}) for array in shares]
    found = score(answers, "m", AccuracyConfig(), "d")
    assert (found.channels, found.unjudged) == ("", ())


def test_an_output_that_hardly_varies_cannot_be_told() -> None:
    random = np.random.default_rng(0)
    scores = random.uniform(0, 0.01, (20, 1, 80, 30)).astype(np.float32)
    rounded = np.round(scores * 255) / np.float32(255)
    answers = [
        (Sample(name="s", inputs={}, expected=[("scores", array)]), {"scores": near})
        for array, near in zip(scores, rounded, strict=True)
    ]
    config = AccuracyConfig(max_drop=0.01)
    found = score(answers, "m", config, "d", spans={"scores": 1.0})
    assert (found.refused, found.verdict) == (True, DropVerdict.CANNOT_TELL)
    assert "of a span of 1" in found.still
    (finding,) = found.findings
    assert "data with positives" in finding.remedy
    wrong = score([(sample, {"scores": 1 - near["scores"]}) for sample, near in answers], "m", config, "d",
                  spans={"scores": 1.0})  # fmt: skip
    assert (wrong.verdict, wrong.still) == (DropVerdict.OVER, "")


def test_labels_that_fit_no_output_are_one_error() -> None:
    outputs: dict[str, Any] = {"boxes": np.zeros((1, 8, 4), np.float32), "count": np.zeros(1, np.int64)}
    sample = Sample(name="s", inputs={}, expected=list(outputs.items()), label=3)
    with pytest.raises(ConfigError, match="the labels fit no output") as caught:
        score([(sample, outputs)], "m", AccuracyConfig(), "d")
    assert "boxes float32 [1, 8, 4], count int64 [1]" in caught.value.why
    assert "miou, map, wer" in caught.value.remedy


def test_a_budget_for_no_output_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    onnx.save(detector(), str(tmp_path / "m.onnx"))
    config = 'name = "m"\n[[models]]\npath = "m.onnx"\n[accuracy.outputs.box]\nmax_drop = 0.1\n'
    (tmp_path / "m.toml").write_text(config)
    ended = ort_mobile("run", "m.toml", "--convert-only", "--output", "out", cwd=tmp_path, code=2)
    assert "the model has no output 'box'" in ended.err
    assert "probabilities, boxes, speed, label" in ended.err
    assert "convert" not in ended.err


# --- states -----------------------------------------------------------------------------------------------------------


def recurrent(
    *, last: tuple[str, str] = ("h_sum", "c_sum"), factor: float = 1.0, outputs: tuple[str, ...] = ()
) -> Model:
    """Two states of one shape; `last` are the values that come out as `hn` and `cn`, the first by a factor."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("MatMul", ["h", "u"], ["hu"]),
        helper.make_node("Add", ["xw", "hu"], ["h_raw"]),
        helper.make_node("Tanh", ["h_raw"], ["h_sum"]),
        helper.make_node("Mul", ["c", "decay"], ["c_kept"]),
        helper.make_node("Add", ["c_kept", "h_sum"], ["c_sum"]),
        helper.make_node("MatMul", ["c_sum", "v"], ["y"]),
        helper.make_node("Mul", [last[0], "factor"], ["hn"]),
        helper.make_node("Identity", [last[1]], ["cn"]),
    ]
    weights = {"w": (4, 8), "u": (8, 8), "v": (8, 3)}
    constants = [numpy_helper.from_array(random.standard_normal(s).astype("f") / 3, n) for n, s in weights.items()]
    constants += [
        numpy_helper.from_array(np.array(0.9, np.float32), "decay"),
        numpy_helper.from_array(np.array(factor, np.float32), "factor"),
    ]
    shapes = {"x": [1, 4], "h": [1, 8], "c": [1, 8], "y": [1, 3], "hn": [1, 8], "cn": [1, 8]}
    values = {name: helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes, "g", [values["x"], values["h"], values["c"]], [values[name] for name in outputs or ("y", "hn", "cn")],
        constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


BROKEN_STATES = {
    "swapped": recurrent(last=("c_sum", "h_sum")),
    "constant": recurrent(factor=0.0),
    "halved": recurrent(factor=0.5),
    "never updated": recurrent(last=("h_sum", "c")),
}


def judged_stream(folder: Path, model: Model, states: dict[str, str] | None) -> AccuracyResult:
    onnx.save(recurrent(), str(folder / "sound_states.onnx"))
    onnx.save(model, str(folder / "candidate_states.onnx"))
    (folder / "some_steps.py").write_text(
        "import numpy\ndef steps():\n    random = numpy.random.default_rng(1)\n    for _ in range(40):\n"
        "        zeros = numpy.zeros((1, 8), 'f')\n"
        "        yield {'x': random.standard_normal((1, 4)).astype('f'), 'h': zeros, 'c': zeros}\n"
    )
    return evaluate_model(AccuracyRequest(
        model=str(folder / "candidate_states.onnx"), reference=SourceModel(path=str(folder / "sound_states.onnx")),
        data=Dataset(test_data=str(folder / "some_steps:steps")), work_folder=str(folder), states=states,
        accuracy=AccuracyConfig(max_drop=0.01),
    ))  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_STATES)
def test_a_broken_state_is_refused_by_the_stream(folder: Path, name: str) -> None:
    found = judged_stream(folder, BROKEN_STATES[name], {"hn": "h", "cn": "c"})
    assert found.refused
    assert found.steps == 100
    of_answer = next(drift for drift in found.outputs if drift.output == "y")
    assert of_answer.over  # though each single step gives it exactly


def test_states_are_found_and_said_to_be(folder: Path) -> None:
    found = judged_stream(folder, recurrent(factor=0.9999), None)
    assert (found.refused, found.steps) == (False, 100)
    (finding,) = found.findings
    assert "hn to h, cn to c" in finding.what
    assert "`state`" in finding.remedy


def test_equal_outputs_keep_a_budget_as_those_that_differ_a_little(folder: Path) -> None:
    found = judged_stream(folder, recurrent(), {"hn": "h", "cn": "c"})
    assert {drift.verdict for drift in found.outputs} == {DropVerdict.WITHIN}


@pytest.mark.parametrize(("elements", "verdict"), [(1, DropVerdict.CANNOT_TELL), (64, DropVerdict.WITHIN)])
def test_whole_numbers_that_are_equal_everywhere_are_as_many_trials(elements: int, verdict: DropVerdict) -> None:
    masks = [np.arange(elements).reshape(1, -1) + number for number in range(20)]
    answers = ((Sample(name="s", inputs={}, expected=[("mask", mask)]), {"mask": mask}) for mask in masks)
    assert score(answers, "m", AccuracyConfig(max_drop=0.02), "d").verdict is verdict
