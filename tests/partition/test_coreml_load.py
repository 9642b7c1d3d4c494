"""What is foreseen of CoreML's claims when a session is made (ep_rules A.2, E.6)."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.partition.answer import LoadForecast, Settings
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import answer, chain, model, value

NN = Settings(provider="coreml-nn", ort_release=(1, 23))
MLP = Settings(provider="coreml-mlprogram", ort_release=(1, 23))
MLP_127 = Settings(provider="coreml-mlprogram", ort_release=(1, 27))


def load(made: onnx.ModelProto, folder: Path, settings: Settings) -> LoadForecast:
    """The forecast of a model that can be judged."""
    given = answer(made, folder, settings)
    assert given.error is None, given.error
    assert given.load is not None
    return given.load


def test_partitions_are_counted(tmp_path: Path) -> None:
    found = load(chain("Relu", "Softsign", "Relu"), tmp_path, NN)
    assert (found.partitions, found.rounds, found.error) == (2, (2,), None)


def test_inlined_functions_are_asked_about_in_a_round_of_their_own(tmp_path: Path) -> None:
    """HardSwish has no CPU kernel: its Mul is compiled alone, beside what the first round compiled."""
    found = load(chain("Relu", "HardSwish", "Relu"), tmp_path, NN)
    assert (found.partitions, found.rounds) == (1, (2, 1))


def test_functions_that_f16_brings(tmp_path: Path) -> None:
    """Softmax-13 in f16 has no CPU kernel and is inlined, although Sub changed between opsets 13 and 17."""
    nodes = parsed_nodes("h = Cast <to = 10> (x)  y = Softmax (h)")
    found = load(model(nodes, [value("x", (2, 3))], ["y"]), tmp_path, MLP)
    assert len(found.rounds) == 2


def test_output_of_unknown_rank_cannot_leave(tmp_path: Path) -> None:
    made = model(parsed_nodes("y = Squeeze (x)"), [value("x", (1, None))], ["y"])
    for settings in (NN, MLP):
        found = load(made, tmp_path, settings)
        assert "'y' leaves the Core ML model, and its rank is not known" in (found.error or "")
        assert found.remedy


def grid_of_doubles() -> onnx.ModelProto:
    """GridSample checks the type of its first input only."""
    inputs = [value("x", (1, 2, 4, 4)), value("grid", (1, 3, 3, 2), TensorProto.DOUBLE)]
    return model(parsed_nodes("y = GridSample (x, grid)"), inputs, ["y"], opset=16)


def bool_behind_cast() -> onnx.ModelProto:
    """A Cast to bool whose result the CPU reads."""
    nodes = parsed_nodes("r = Relu (x)  b = Cast <to = 9> (r)  y = Not (b)")
    return model(nodes, [value("x", (2, 3))], ["y"])


def test_types_between_the_models(tmp_path: Path) -> None:
    found = load(grid_of_doubles(), tmp_path, MLP)
    assert "'grid'" in (found.error or "")
    assert "f64" in (found.error or "")
    assert load(bool_behind_cast(), tmp_path, MLP_127).error is None


@pytest.mark.parametrize("settings", [NN, MLP])
def test_split_with_an_empty_second_input(settings: Settings, tmp_path: Path) -> None:
    node = helper.make_node("Split", ["x", ""], ["y", "z"], axis=0, num_outputs=2)
    found = load(model([node], [value("x", (4, 6))], ["y", "z"], opset=18), tmp_path, settings)
    assert "under an empty name" in (found.error or "")
