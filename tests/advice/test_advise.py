"""Advice as a whole: what is found, what is written, and what bad models cost."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.advice.advise import advise
from pipeline.advice.trial import _objection
from pipeline.advice.verdict import Advice, FixChoice, FixOutcome
from pipeline.check.compare import OutputCheck
from pipeline.core.errors import ConfigError, ModelError
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, Settings
from pipeline.report.partition import advice_lines
from pipeline.report.show import plain_lines
from tests.advice.fix_cases import MLP, NN, NNAPI, Model, f32, i64, outputs, weights
from tests.command import Done, ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import chain, model, value
from tests.values import present

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"


def advice(path: Path, provider: str, **options: Any) -> Advice:
    settings = Settings(provider=provider, ort_release=(1, 23), api_level=31)
    wanted: dict[str, Any] = {"optimize": Optimize.NONE, "sizes": {}, "data": Dataset()} | options
    return advise(SourceModel(path=str(path)), settings, **wanted)


def outcome(given: Advice, name: str) -> FixOutcome:
    return next(result.outcome for result in given.fixes if result.name == name)


def call(*arguments: str, code: int | None = 0) -> Done:
    return ort_mobile("partition", *arguments, code=code)


def padded(count: int) -> Model:
    """Convolutions, each behind a reflect Pad, as style transfer models have them."""
    nodes = []
    for number in range(count):
        nodes += [
            helper.make_node("Pad", [f"x{number}" if number else "x", "pads"], [f"p{number}"], mode="reflect"),
            helper.make_node("Conv", [f"p{number}", "w"], [f"c{number}"]),
            helper.make_node("Relu", [f"c{number}"], [f"x{number + 1}"]),
        ]
    constants = {"pads": i64(0, 0, 1, 1, 0, 0, 1, 1), "w": weights(4, 4, 3, 3)}
    return model(nodes, [value("x", (1, 4, 8, 9))], [f"x{count}"], constants)


def open_mnist(folder: Path) -> Path:
    made = onnx.load(MNIST)
    for graph_value in (*made.graph.input, *made.graph.output):
        graph_value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del made.graph.value_info[:]
    constants = {tensor.name for tensor in made.graph.initializer}
    (reshape,) = [node for node in made.graph.node if node.op_type == "Reshape" and node.input[0] not in constants]
    (shape,) = [tensor for tensor in made.graph.initializer if tensor.name == reshape.input[1]]
    shape.CopyFrom(numpy_helper.from_array(i64(-1, 256), shape.name))
    path = folder / "open.onnx"
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("provider", [NN, MLP])
def test_reflect_pads_of_a_model_become_one_partition_bit_for_bit(provider: str, tmp_path: Path) -> None:
    made, fixed = padded(14), tmp_path / "fixed.onnx"
    onnx.save(made, tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", provider, write_to=str(fixed))
    assert present(given.before).partitions == 14
    assert present(given.verdict).choice is FixChoice.CPU
    assert given.best is not None
    assert given.best.after.partitions == 1
    assert given.best.verdict.choice is FixChoice.USE
    assert (given.best.fixes, given.best.error, given.best.tolerance) == (("pad-as-concat",), 0.0, 0.0)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 9)).astype(np.float32)}
    assert outputs(made, feeds)[0].tobytes() == outputs(onnx.load(fixed), feeds)[0].tobytes()


def test_mnist_of_open_batch_gets_one_partition(tmp_path: Path) -> None:
    given = advice(open_mnist(tmp_path), NNAPI, optimize=Optimize.BASIC)
    assert present(given.before).partitions == 0
    assert given.best is not None
    assert given.best.after.partitions == 1
    assert given.best.after.coverage == 1.0
    assert given.best.error == 0.0
    assert outcome(given, "level-basic") is FixOutcome.NOT_APPLICABLE


def test_an_exact_fix_is_compared_on_as_many_threads_as_the_original_ran_on(tmp_path: Path) -> None:
    """Two threads round the sums of a convolution over few pixels otherwise than one."""
    made = model(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], [value("x", ("n", 96, 7, 7))], ["y"],
        {"w": np.random.default_rng(0).standard_normal((24, 96, 3, 3)).astype(np.float32)},
    )  # fmt: skip
    onnx.save(made, tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", NNAPI, sizes={"n": 1})
    assert given.best is not None
    assert (given.best.fixes, given.best.error) == (("fixed-dimensions",), 0.0)


def test_wanted_sizes_are_used(tmp_path: Path) -> None:
    fixed = tmp_path / "fixed.onnx"
    onnx.save(chain("Relu", "Tanh", dims=("n", 3, None)), tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", NNAPI, sizes={"n": 2, "x[2]": 5}, write_to=str(fixed))
    assert present(given.best).written == str(fixed)
    assert "x [2, 3, 5]" in given.checked_on
    (graph_input,) = onnx.load(fixed).graph.input
    assert [dim.dim_value for dim in graph_input.type.tensor_type.shape.dim] == [2, 3, 5]


def test_fixes_that_only_help_together_are_found(tmp_path: Path) -> None:
    nodes = [helper.make_node(op, [f"x{i}" if i else "x"], [f"x{i + 1}"]) for i, op in enumerate(["Relu"] * 8)]
    made = model(nodes, [value("x", ("n", 3), TensorProto.FLOAT16)], ["x8"])
    made.graph.output[0].CopyFrom(value("x8", ("n", 3), TensorProto.FLOAT16))
    onnx.save(made, tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", NNAPI)
    assert outcome(given, "f32") is FixOutcome.NO_GAIN
    assert outcome(given, "fixed-dimensions") is FixOutcome.NO_GAIN
    assert set(present(given.best).fixes) == {"f32", "fixed-dimensions"}


def large(folder: Path, *, beside: bool) -> Path:
    """Over 4 MiB of weights in the model or in a file beside it, and a batch of matrices that NNAPI refuses."""
    nodes = parsed_nodes("a = MatMul (x, w)  y = Relu (a)")
    made = model(nodes, [value("x", (2, 3, 1024))], ["y"], {"w": weights(1024, 1100), "unused": weights(20000)})
    path = folder / "large.onnx"
    onnx.save(made, path, save_as_external_data=beside, location="data/w.bin") if beside else onnx.save(made, path)
    return path


@pytest.mark.parametrize("beside", [False, True])
def test_weights_of_large_models_are_copied_in(beside: bool, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path, fixed = large(tmp_path, beside=beside), tmp_path / "out" / "fixed.onnx"
    given = advice(path, NNAPI, write_to=str(fixed))
    assert "flat-matmul" in present(given.best).fixes
    assert outcome(given, "level-basic") is not FixOutcome.REJECTED
    assert [file.name for file in fixed.parent.iterdir()] == ["fixed.onnx"]
    made = onnx.load(fixed, load_external_data=False)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made))
    assert all(not tensor.external_data for tensor in made.graph.initializer)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 1024)).astype(np.float32)}
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(onnx.load(path), feeds)[0], rtol=1e-3, atol=1e-4)


def test_a_model_that_does_not_run_here_gets_no_unchecked_fix(tmp_path: Path) -> None:
    nodes = parsed_nodes("same = Identity (text)  y = Relu (x)")
    inputs = [value("x", ("n", 3)), value("text", (1,), TensorProto.STRING)]
    onnx.save(model(nodes, inputs, ["y", "same"]), tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", NNAPI)
    assert given.best is None
    assert "nothing could be compared" in given.checked_on
    rejected = next(result for result in given.fixes if result.name == "fixed-dimensions")
    assert rejected.outcome is FixOutcome.REJECTED
    assert "cannot be checked" in rejected.why


def test_inputs_too_large_to_make_leave_the_rest_of_the_advice(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Erf", dims=(1 << 40, 1 << 40)), tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", NNAPI)
    assert given.error is None
    assert given.best is None
    assert "nothing could be compared" in given.checked_on


def gated(bias: float, gain: float = 2e4) -> Model:
    """Probabilities around sigmoid(`bias`) behind an Erf that NNAPI refuses and whose error is multiplied by `gain`."""
    nodes = parsed_nodes("""
        s = Mul (x, small)  h = Erf (s)  l = Mul (h, large)  m = Sub (l, middle)  y = Sigmoid (m)""")
    constants = {"small": f32(0.4 / gain), "large": f32(gain), "middle": f32(-bias)}
    return model(nodes, [value("x", (1, 4, 32, 32))], ["y"], constants)


def test_the_rounding_of_tiny_outputs_rejects_no_fix(tmp_path: Path) -> None:
    onnx.save(gated(-12.0), tmp_path / "m.onnx")
    given = advice(tmp_path / "m.onnx", NNAPI)
    (result,) = [fix for fix in given.fixes if fix.name == "erf-by-exp"]
    assert result.outcome is FixOutcome.GAINS, result.why
    assert result.error is not None
    assert result.tolerance is not None
    assert result.absolute_error is not None
    assert result.limit is not None
    assert result.error > result.tolerance
    assert result.absolute_error < result.limit == pytest.approx(1e-6)
    assert "erf-by-exp" in present(given.best).fixes
    lines = " ".join(text for line in advice_lines(given) for text in plain_lines(line))
    assert "absolute error" in lines
    assert "of 1e-06 allowed" in lines


def test_outputs_that_show_nothing_reject_a_fix_that_rounds_and_ask_for_test_data(tmp_path: Path) -> None:
    onnx.save(gated(30.0), tmp_path / "m.onnx")
    (result,) = [fix for fix in advice(tmp_path / "m.onnx", NNAPI).fixes if fix.name == "erf-by-exp"]
    assert result.outcome is FixOutcome.REJECTED
    assert "cannot judge on random inputs" in result.why
    assert "give test data" in result.why


def test_test_data_decide_where_random_inputs_cannot_and_give_sizes(tmp_path: Path) -> None:
    """Saturated on noise, not on the data; the open axis has the size that the data have."""
    made = gated(30.0, gain=1e3)
    made.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    del made.graph.value_info[:]
    onnx.save(made, tmp_path / "m.onnx")
    values = (np.random.default_rng(0).standard_normal((1, 4, 8, 32)) * 10 - 65).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=values)
    given = advice(tmp_path / "m.onnx", NNAPI, data=Dataset(test_data=str(tmp_path / "data.npz")))
    assert "erf-by-exp" in present(given.best).fixes
    assert "x [1, 4, 8, 32]" in given.checked_on
    assert "data.npz" in given.checked_on


def test_test_data_that_do_not_fit_are_the_users_error(tmp_path: Path) -> None:
    onnx.save(gated(0.0), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 2), np.float32))
    with pytest.raises(ConfigError, match="does not fit"):
        advice(tmp_path / "m.onnx", NNAPI, data=Dataset(test_data=str(tmp_path / "data.npz")))


def test_an_ort_format_file_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "m.ort").write_bytes(b"\0\0\0\0ORTM" + bytes(64))
    with pytest.raises(ModelError, match="cannot be changed"):
        advice(tmp_path / "m.ort", NNAPI)


def test_command_shows_and_writes_advice(tmp_path: Path) -> None:
    onnx.save(padded(3), tmp_path / "m.onnx")
    fixed, document = tmp_path / "fixed.onnx", tmp_path / "answer.json"
    result = call(
        str(tmp_path / "m.onnx"), "--ep", "coreml-mlprogram", "--ort-release", "1.23", "--fix", str(fixed),
        "--json", str(document),
    )  # fmt: skip
    words = " ".join(result.text.split())
    assert (
        "pad-as-concat (write Pad as Slice and Concat): partitions 3 → 1, coverage 66 → 100 %, outputs equal" in words
    )
    assert "verdict: use the CPU" in words
    assert fixed.is_file()
    answer = json.loads(document.read_bytes())["models"][0]
    assert answer["advice"]["best"]["written"] == str(fixed)
    assert answer["partitions"]


def test_command_compares_on_test_data(tmp_path: Path) -> None:
    onnx.save(gated(30.0, gain=1e3), tmp_path / "m.onnx")
    values = (np.random.default_rng(0).standard_normal((1, 4, 32, 32)) * 10 - 65).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=values)
    asked = (str(tmp_path / "m.onnx"), "--ep", "nnapi", "--test-data", str(tmp_path / "data.npz"))
    result = call(*asked, "--advise")
    words = " ".join(result.text.split())
    assert "erf-by-exp (write Erf and Gelu by a polynomial and Exp, to 1.5e-7): partitions" in words
    assert "data.npz (x [1, 4, 32, 32])" in words
    alone = call(*asked, code=2)
    assert "--advise" in alone.text


def test_default_answers_have_no_advice(tmp_path: Path) -> None:
    onnx.save(padded(1), tmp_path / "m.onnx")
    call(str(tmp_path / "m.onnx"), "--ep", "nnapi", "--json", str(tmp_path / "answer.json"))
    assert "advice" not in json.loads((tmp_path / "answer.json").read_bytes())["models"][0]


def test_models_that_cannot_be_judged_or_changed_do_not_cost_the_others(tmp_path: Path) -> None:
    onnx.save(padded(2), tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    call(str(tmp_path), "--ep", "coreml-nn", "--advise", "--json", str(tmp_path / "answer.json"), code=1)
    bad, good = json.loads((tmp_path / "answer.json").read_bytes())["models"]
    assert bad["error"]
    assert good["advice"]["best"]["gain"].startswith("partitions 2 → 1")


def test_a_model_with_nothing_to_gain_is_copied(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Tanh"), tmp_path / "m.onnx")
    result = call(str(tmp_path / "m.onnx"), "--ep", "nnapi", "--fix", str(tmp_path / "fixed.onnx"))
    assert f"nothing to improve in the model itself; copied unchanged to {tmp_path / 'fixed.onnx'}" in result.text
    assert (tmp_path / "fixed.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_a_copy_has_the_weights_of_other_files_inside(tmp_path: Path) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    made = model([conv], [value("x", (1, 1, 6, 6))], ["y"], {"w": np.ones((2, 1, 3, 3), np.float32)})
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    call(str(tmp_path / "m.onnx"), "--ep", "coreml-mlprogram", "--fix", str(tmp_path / "o" / "fixed.onnx"))
    copied = onnx.load(tmp_path / "o" / "fixed.onnx", load_external_data=False)
    assert len(copied.graph.initializer[0].raw_data) == 2 * 9 * 4


def test_fix_takes_one_model_and_keeps_it(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        onnx.save(chain("Relu", "Tanh"), tmp_path / name)
    several = call(str(tmp_path), "--ep", "nnapi", "--fix", str(tmp_path / "fixed.onnx"), code=2)
    assert "one model" in several.err
    itself = call(str(tmp_path / "a.onnx"), "--ep", "nnapi", "--fix", str(tmp_path / "a.onnx"), code=2)
    assert "replace the model itself" in itself.err


def test_a_form_that_is_far_from_the_original_may_still_be_fixed() -> None:
    """With what it is allowed then, outputs between 0 and 1 show nothing: the simulator's noise decides."""
    check = OutputCheck(
        output="y", passed=False, unknown=True, max_abs_error=0.66, max_rel_error=0.66, reason="nearly constant"
    )
    assert _objection([check], 0.78) == ""
    assert "nearly constant" in _objection([check], 0.6)
    assert "nearly constant" in _objection([check], 0.0)
    assert "nearly constant" in _objection([msgspec.structs.replace(check, max_rel_error=0.0)], None)
