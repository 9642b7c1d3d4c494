"""The search for what must stay float, on models of which the cause of the loss is known."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.check import compare
from pipeline.config.tables import Step
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import session
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.passes import mixed
from pipeline.passes.base import Feeds, LayerLoss, MixedSearch, Model, PassContext, Trial
from pipeline.passes.mixed import (
    VERY_GOOD_DB,
    Evaluator,
    MixedOptions,
    PartitionCount,
    mixed_precision,
    provider_settings,
    search_of,
    sqnr_db,
)
from pipeline.passes.registry import run_passes
from pipeline.passes.static import quantize
from tests.passes.quantized_models import EXAMPLE, accuracy, context, digits, feeds, load, saved
from tests.values import present

SIZE = 16


def dense(name: str, value: str, random: np.random.Generator, spread: float = 1.0) -> tuple[Any, Any]:
    """A MatMul with a random weight; with a spread one column is so much larger than the others."""
    weight = random.standard_normal((SIZE, SIZE)).astype(np.float32) / 4
    weight[:, 0] *= spread
    node = helper.make_node("MatMul", [value, f"{name}_w"], [f"{name}_out"], name=name)
    return node, numpy_helper.from_array(weight, f"{name}_w")


def net(folder: Path, *, bad_type: bool = False, bad_layer: int | None = None, layers: int = 6) -> Model:
    """Dense layers with Tanh; `bad_type` adds and subtracts 1000, `bad_layer` spreads the weights of a layer."""
    random = np.random.default_rng(0)
    nodes, constants, value = [], [], "x"
    for place in range(layers):
        node, weight = dense(f"dense{place}", value, random, 3000.0 if place == bad_layer else 1.0)
        nodes.append(node)
        constants.append(weight)
        value = node.output[0]
        if place == bad_layer:
            constants.append(numpy_helper.from_array(np.array([1 / 3000] + [1] * (SIZE - 1), np.float32), "scale"))
            nodes.append(helper.make_node("Mul", [value, "scale"], ["scaled"], name="rescale"))
            value = "scaled"
        if bad_type and place == 1:
            constants.append(numpy_helper.from_array(np.array(1000, np.float32), "much"))
            nodes.append(helper.make_node("Add", [value, "much"], ["up"], name="up"))
            nodes.append(helper.make_node("Sub", ["up", "much"], ["down"], name="down"))
            value = "down"
        nodes.append(helper.make_node("Tanh", [value], [f"tanh{place}"], name=f"tanh{place}"))
        value = f"tanh{place}"
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, SIZE])], constants,
    )  # fmt: skip
    return saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder)


def searched(model: Model, folder: Path, options: MixedOptions, samples: list[Any] | None = None) -> MixedSearch:
    made = mixed_precision(model, options, context(folder, samples or feeds(model, 24)))
    return present(search_of(made.proto))


def test_a_type_that_spoils_everything_stays_float(tmp_path: Path) -> None:
    found = searched(net(tmp_path, bad_type=True), tmp_path, MixedOptions(goal_db=25))
    assert "Add" in found.best.types
    assert found.start.sqnr_db < 15
    assert found.best.sqnr_db >= 25
    assert not found.spread


def test_a_layer_that_spoils_everything_stays_float(tmp_path: Path) -> None:
    """Without a quantized weight; meanwhile the user sees what the search is at."""
    said: list[str] = []
    model = net(tmp_path, bad_layer=3)
    there = replace(context(tmp_path, feeds(model, 24)), say=said.append)
    made = mixed_precision(model, MixedOptions(goal_db=28, op_types=("MatMul",)), there)
    found = present(search_of(made.proto))
    assert found.layers[0].nodes == ("dense3",)
    assert "dense3" in found.best.nodes
    assert found.best.sqnr_db > found.start.sqnr_db + 5
    assert said[0].startswith("1 of at most 60 evaluations, ")
    assert said[0].endswith(" dB")
    assert len(said) > 3
    onnx.checker.check_model(made.proto)
    makers = {name: node.op_type for node in made.proto.graph.node for name in node.output}
    weights = {node.name: makers.get(node.input[1]) for node in made.proto.graph.node if node.op_type == "MatMul"}
    assert {name for name, maker in weights.items() if maker is None} == set(found.best.nodes)
    assert found.best.quantized == sum(maker == "DequantizeLinear" for maker in weights.values())


@pytest.mark.parametrize(("gained", "spread"), [(0.5, True), (5.0, False)])
def test_a_loss_without_a_culprit_is_said_to_be_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gained: float, spread: bool
) -> None:
    """Each choice that leaves anything float gains so much, whatever it is."""
    model = net(tmp_path)
    everything: list[int] = []

    def figure(_self: Evaluator, nodes: frozenset[str]) -> float:
        everything.append(len(nodes))
        return 10.0 if len(nodes) == max(everything) else 10.0 + gained

    monkeypatch.setattr(Evaluator, "sqnr", figure)
    found = searched(model, tmp_path, MixedOptions(goal_db=40, op_types=("MatMul",)))
    assert found.start.sqnr_db == 10.0
    assert found.best.sqnr_db == 10.0 + gained
    assert found.spread is spread
    assert ("the loss is spread" in found.text) is spread


@pytest.mark.parametrize("evaluations", [1, 5, 20])
def test_evaluations_are_bounded(tmp_path: Path, evaluations: int) -> None:
    options = MixedOptions(goal_db=100, evaluations=evaluations)
    found = searched(net(tmp_path, layers=10, bad_type=True), tmp_path, options)
    assert found.evaluations <= evaluations
    assert found.best == max(found.trials, key=lambda one: one.sqnr_db)


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the evaluations are made before the interruption and none of them again."""
    model, options = net(tmp_path, layers=10, bad_type=True), MixedOptions(goal_db=100, evaluations=20)
    calls: list[int] = []
    real = quantize

    def counted(*arguments: Any, **named: Any) -> Model:
        calls.append(1)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr("pipeline.passes.mixed.quantize", counted)
    with pytest.raises(KeyboardInterrupt):
        searched(model, tmp_path, options)
    again = searched(model, tmp_path, options)
    assert len(calls) <= 10 + again.evaluations - 9 + 1  # the last quantizes what was chosen
    monkeypatch.undo()
    other_key = MixedOptions(goal_db=options.goal_db, evaluations=options.evaluations, percentile=99.5)
    fresh = searched(model, tmp_path, other_key)  # nothing is reused, though they mean the same
    assert fresh.trials == again.trials


def test_the_example_needs_nothing_left_float(tmp_path: Path) -> None:
    model = load(EXAMPLE / "mnist.onnx", tmp_path)
    name = model.proto.graph.input[0].name
    samples: list[Feeds] = [{name: image} for image in digits()[0][:24]]
    result = run_passes(model, [Step(do="mixed-precision")], context(tmp_path, samples))
    found = present(search_of(result.model.proto))
    assert found.best == found.start
    assert found.evaluations == 1
    assert accuracy(result.model) >= accuracy(model) - 0.01


def test_bad_options_and_records_are_refused(tmp_path: Path) -> None:
    model = net(tmp_path)
    with pytest.raises(ConfigError, match="at least one evaluation"):
        searched(model, tmp_path, MixedOptions(evaluations=0))
    with pytest.raises(ConfigError, match="no calibration samples"):
        mixed_precision(model, MixedOptions(), PassContext(folder=tmp_path, where="m", samples=lambda: iter(())))
    model.proto.metadata_props.add(key=mixed.PROPERTY, value="{")
    with pytest.raises(ModelError, match="cannot be read"):
        search_of(model.proto)


def test_noise_of_outputs_counts_by_output() -> None:
    large, small = np.full(4, 100.0), np.full(4, 0.01)
    assert sqnr_db([[large, small]], [[large, small * 2]]) == pytest.approx(-10 * np.log10(0.5))
    assert sqnr_db([[large]], [[large * 1.1]]) == pytest.approx(20) == compare.sqnr_db(large, large * 1.1)
    assert sqnr_db([[large]], [[large]]) == VERY_GOOD_DB
    assert sqnr_db([[np.array([3])]], [[np.array([4])]]) == VERY_GOOD_DB  # integers say nothing
    assert sqnr_db([[large]], [[np.full(4, np.nan)]]) == -VERY_GOOD_DB


def test_a_search_among_useless_choices_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has no infinity: outputs of NaN have a figure, in the record and in what is kept."""
    model, options = net(tmp_path), MixedOptions(goal_db=40, evaluations=6)
    monkeypatch.setattr("pipeline.passes.mixed.sqnr_db", lambda *_: sqnr_db([[np.ones(1)]], [[np.full(1, np.nan)]]))
    assert searched(model, tmp_path, options).best.sqnr_db == -VERY_GOOD_DB
    monkeypatch.setattr("pipeline.passes.mixed.sqnr_db", None)
    assert searched(model, tmp_path, options).start.sqnr_db == -VERY_GOOD_DB, "found where it was kept"


def test_more_evaluations_go_on_where_fewer_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(tmp_path, layers=10, bad_type=True)
    few = searched(model, tmp_path, MixedOptions(goal_db=100, evaluations=5))
    calls: list[int] = []

    def counted(wanted: Any, given: Any) -> float:
        calls.append(1)
        return sqnr_db(wanted, given)

    monkeypatch.setattr("pipeline.passes.mixed.sqnr_db", counted)
    more = searched(model, tmp_path, MixedOptions(goal_db=100, evaluations=12))
    assert len(calls) <= more.evaluations - few.evaluations + 2, "some are asked for in the longer search only"


def trial(sqnr_db: float, quantized: int, partitions: int | None = None, load_error: str = "") -> Trial:
    return Trial(sqnr_db=sqnr_db, quantized=quantized, partitions=partitions, load_error=load_error)


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([trial(31, 9), trial(33, 8)], 0),
        ([trial(31, 9, 5), trial(33, 8, 2), trial(40, 3, 2)], 1),
        ([trial(31, 9, 1, "no scale"), trial(32, 8, 4)], 1),
        ([trial(12, 9, 1), trial(20, 8, 7)], 1),
        ([trial(20, 9, 1, "no scale"), trial(12, 8, 7)], 1),
    ],
    ids=["most quantized", "fewest partitions", "loads", "least noise", "loads, though noisier"],
)
def test_which_choice_is_the_best(trials: list[Trial], best: int) -> None:
    assert mixed._best(trials, goal_db=30) is trials[best]


def test_layers_that_cut_the_providers_graph_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noisiest layer adds three partitions when it stays float, the next none."""
    model = net(tmp_path)
    options = MixedOptions(provider="nnapi", op_types=("MatMul",), goal_db=100, evaluations=4)
    cut = frozenset({"dense1"})

    def standing(self: Evaluator, nodes: frozenset[str]) -> PartitionCount:
        return 1 if cut <= nodes else 4, ""

    monkeypatch.setattr(Evaluator, "standing", standing)
    found = searched(model, tmp_path, options)
    losses = [
        LayerLoss(nodes=(f"dense{n}",), op_type="MatMul", sqnr_db=db) for n, db in ((1, 10.0), (2, 13.0), (3, 30.0))
    ]
    bench = object.__new__(Evaluator)
    bench.nodes = {f"dense{number}": "MatMul" for number in range(6)}
    assert mixed._ranked(bench, found.start, losses) == ["dense2", "dense1", "dense3"]
    assert found.start.partitions == 1


def test_a_model_that_makes_no_message_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(_model: Model) -> onnx.ModelProto:
        raise ValueError("exceeds the maximum of 2 GiB")

    model = net(tmp_path, layers=1)
    monkeypatch.setattr(session, "loadable", too_large)
    bench = object.__new__(Evaluator)
    bench.where = "m.onnx"
    with pytest.raises(ModelError, match="does not run here") as caught:
        bench.outputs(model)
    assert (caught.value.where, caught.value.why) == ("m.onnx", "exceeds the maximum of 2 GiB")


def test_partitions_are_counted_for_a_phone() -> None:
    settings = present(provider_settings("nnapi", 29, ""))
    assert (settings.abi, settings.android, settings.api_level) == ("arm64-v8a", True, 29)


def test_partitions_are_those_of_the_rules(tmp_path: Path) -> None:
    """One dense layer left float in the middle of a chain that NNAPI claims whole."""

    model = net(tmp_path, bad_layer=3)
    made = mixed_precision(
        model, MixedOptions(provider="nnapi", op_types=("MatMul",), dense_weights="u8", goal_db=28, evaluations=20),
        context(tmp_path, feeds(model, 24)),
    )  # fmt: skip
    found = present(search_of(made.proto))
    onnx.save(made.proto, tmp_path / "made.onnx")
    source = SourceModel(path=str(tmp_path / "made.onnx"))
    answer = judge(PartitionRequest(source=source, settings=make_settings("nnapi"), optimize=Optimize.BASIC))
    assert answer.claimed
    assert found.best.partitions == len(answer.partitions)
    assert f"in {len(answer.partitions)} partition" in found.text


def test_partitions_of_open_dimensions_are_those_of_the_samples(tmp_path: Path) -> None:
    """NNAPI claims nothing of an open dimension: counted so, no choice would cost a partition."""
    model = net(tmp_path)
    for value in (*model.proto.graph.input, *model.proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    options = MixedOptions(provider="nnapi", op_types=("MatMul",), dense_weights="u8", goal_db=1, evaluations=1)
    assert searched(model, tmp_path, options).start.partitions


def test_a_provider_whose_claims_depend_on_the_chip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: what QNN takes depends on the chip, and none is named"):
        searched(net(tmp_path), tmp_path, MixedOptions(provider="qnn"))


@pytest.mark.npu
def test_a_choice_for_an_npu_counts_the_partitions_of_its_compiler(tmp_path: Path) -> None:
    options = MixedOptions(provider="qnn", chip="SM8635", every_type=True, goal_db=90, evaluations=6)
    found = searched(net(tmp_path), tmp_path, options)
    assert (found.start.partitions, found.start.load_error) == (1, "")
    assert found.best.partitions == 1, "what stays float would end the session on a chip without floats"
    assert all(trial.load_error or trial.partitions for trial in found.trials)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR):
        yield
