"""What `release apple` refuses is said before: the report of a run, and the package, ask one function."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.command import ort_mobile

IPHONE = """[[targets]]
name = "iphone"
platform = "ios"
min_os_version = "15.1"
ort_release = "1.24"
"""


def made(folder: Path, name: str, types: dict[str, int], source: int = TensorProto.FLOAT) -> None:
    """A model with an output of each type; `source` is that of its input."""
    nodes = [helper.make_node("Cast", ["x"], [output], to=kind) for output, kind in types.items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", source, [1, 4])],
        [helper.make_tensor_value_info(output, kind, [1, 4]) for output, kind in types.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / name)


def run(folder: Path, *models: str, target: str = IPHONE, runs: str = "") -> str:
    tables = "".join(f'[[models]]\npath = "{model}"\n' for model in models)
    (folder / "c.toml").write_text(
        f'name = "c"\n{tables}{target}{runs}[variants]\nlevels = ["basic"]\nstyles = ["fixed"]\n'
    )
    return ort_mobile("run", "c.toml", "--convert-only", "--output", "out", cwd=folder).out


def released(folder: Path, code: int = 2) -> str:
    return ort_mobile("release", "apple", "out/bundle", "--output", "package", cwd=folder, code=code).err


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.DOUBLE])
def test_an_output_that_swift_cannot_read_is_a_reservation(tmp_path: Path, kind: int) -> None:
    made(tmp_path, "m.onnx", {"y": kind})
    said = run(tmp_path, "m.onnx")
    assert "Ready to ship with reservations" in said
    refusal = f"Swift cannot run the model m: y is {helper.tensor_dtype_to_np_dtype(kind).name}"
    assert f"target iphone: `release apple` refuses it: {refusal}" in said
    assert refusal in released(tmp_path)


def test_an_input_that_swift_cannot_make_is_a_reservation(tmp_path: Path) -> None:
    made(tmp_path, "m.onnx", {"y": TensorProto.FLOAT}, TensorProto.FLOAT16)
    assert "`release apple` refuses it: Swift cannot run the model m: x is float16" in run(tmp_path, "m.onnx")
    released(tmp_path)


def test_an_output_that_is_left_out_is_one(tmp_path: Path) -> None:
    made(tmp_path, "m.onnx", {"y": TensorProto.FLOAT16, "z": TensorProto.FLOAT})
    said = run(tmp_path, "m.onnx")
    assert "Ready to ship with reservations" in said
    assert "target iphone: m: the output y is left out" in said
    assert "m: the output y is left out" in released(tmp_path, 0)


def test_two_models_of_one_class_are_one(tmp_path: Path) -> None:
    for name in ("my-net.onnx", "my_net.onnx"):
        made(tmp_path, name, {"y": TensorProto.FLOAT})
    assert "`release apple` refuses it: the models my-net and my_net would both have the class MyNet" in run(
        tmp_path, "my-net.onnx", "my_net.onnx"
    )
    released(tmp_path)


def test_so_they_are_for_android(tmp_path: Path) -> None:
    for name in ("my-net.onnx", "my_net.onnx"):
        made(tmp_path, name, {"y": TensorProto.FLOAT})
    said = run(tmp_path, "my-net.onnx", "my_net.onnx", target='[[targets]]\nname = "phone"\nplatform = "android"\n')
    assert "target phone: `release android` refuses it: the models my-net and my_net would both have the" in said


@pytest.mark.parametrize("platform", ["android", "linux"])
def test_other_systems_are_not_asked(tmp_path: Path, platform: str) -> None:
    made(tmp_path, "m.onnx", {"y": TensorProto.FLOAT16})
    target = f'[[targets]]\nname = "other"\nplatform = "{platform}"\nort_release = "1.24"\n'
    assert "`release " not in run(tmp_path, "m.onnx", target=target)


def test_what_swift_can_run_is_no_reservation(tmp_path: Path) -> None:
    made(tmp_path, "m.onnx", {"y": TensorProto.INT64})
    assert "release apple" not in run(tmp_path, "m.onnx")
    released(tmp_path, 0)
