"""What files compute in the session that apps have, and the original as it is defined."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.check.compare import OutputCheck
from pipeline.check.many import check_all, check_artifact
from pipeline.check.reference import make_reference
from pipeline.config import CheckConfig
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.dataset import Dataset
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.session import ORIGINAL, AppSession, CpuSettings, Role, broken_by_optimizer, outputs_of, room_for
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Effect, PassContext
from pipeline.passes.optimize import saved_at
from pipeline.passes.run import verify
from tests.onnx_samples import save

ROWS, COLUMNS = 64, 8
OUTLIERS = [1000.0 if number == 0 else 1.0 for number in range(ROWS)]
"""One large number, whose weight is 0: 8 bits with one scale leave nothing of the others."""

SCALES = np.arange(1, COLUMNS + 1)


def four_bits(folder: Path, accuracy_level: int = 4) -> LoadedModel:
    """A product with weights in 4 bits: 0 in the first row, 1 in all others."""
    weights = np.full((COLUMNS, 2, 16), 0x99, np.uint8)  # two numbers in each byte, 8 stands for 0
    weights[:, 0, 0] = 0x98
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=ROWS, N=COLUMNS, bits=4, block_size=32,
        accuracy_level=accuracy_level,
    )  # fmt: skip
    constants: dict[str, np.ndarray[Any, Any]] = {"w": weights, "s": np.repeat(SCALES, 2).astype(np.float32)}
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, COLUMNS])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return loaded(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder)


def loaded(proto: ModelProto, folder: Path) -> LoadedModel:
    return load_model(SourceModel(path=str(save(proto, folder / "m.onnx"))), folder)


def checked(model: LoadedModel, folder: Path, **options: Any) -> Any:
    data = Dataset(inputs={"x": tuple(OUTLIERS)})
    reference = make_reference(model.source, {}, data, str(folder / "r"), str(folder))
    (check,) = check_artifact(str(model.path), {}, reference, reference.tolerance(), **options)
    return check


def test_files_compute_as_in_apps_and_the_original_as_it_is_defined(tmp_path: Path) -> None:
    """Kernels compute in 8 bits where accuracy_level allows it, on prepacked weights alone."""
    model, feeds = four_bits(tmp_path), {"x": np.array([OUTLIERS], np.float32)}
    assert outputs_of(model, feeds)["y"] == pytest.approx(63 * SCALES[None])
    assert outputs_of(model, feeds, CpuSettings(prepacked=False))["y"] == pytest.approx(63 * SCALES[None])
    assert outputs_of(model, feeds, CpuSettings())["y"] != pytest.approx(63 * SCALES[None], rel=0.1)


def test_what_computes_otherwise_in_apps_differs(tmp_path: Path) -> None:
    check = checked(four_bits(tmp_path), tmp_path)
    assert check.failed
    assert "MatMulNBits computes in 8 bits in apps" in check.reason
    assert "accuracy_level 1" in check.remedy
    assert checked(four_bits(tmp_path, accuracy_level=1), tmp_path).passed


def test_of_several_sessions_the_worst_counts(tmp_path: Path) -> None:
    model = four_bits(tmp_path)
    reference = make_reference(
        model.source, {}, Dataset(inputs={"x": tuple(OUTLIERS)}), str(tmp_path / "r"), str(tmp_path)
    )
    artifact = Artifact(
        model="m", variant=Variant(level=Level.ALL), file=model.path.name, source_operators={}, size_bytes=1, sha256="",
        semantic_digest="", operators={},
    )  # fmt: skip
    in_float = AppSession(config={"session.disable_prepacking": "1"})

    def judged(*sessions: AppSession) -> OutputCheck | PipelineError:
        results = check_all([(artifact, reference)], tmp_path, CheckConfig(), NoProgress(), lambda _: sessions)
        (result,) = results.values()
        return result if isinstance(result, PipelineError) else result[0]

    alone, both = judged(in_float), judged(in_float, AppSession())
    assert isinstance(alone, OutputCheck)
    assert isinstance(both, OutputCheck)
    assert (alone.passed, alone.session) == (True, "with session.disable_prepacking=1")
    assert (both.failed, both.session) == (True, "")
    error = judged(AppSession(), AppSession(config={"session.load_model_format": "ORT"}))
    assert isinstance(error, PipelineError)
    assert "in a session with session.load_model_format=ORT" in error.what
    assert "[[runs]]" in error.remedy


def test_a_step_is_not_blamed_for_what_the_original_does(tmp_path: Path) -> None:
    model, data = four_bits(tmp_path), Dataset(inputs={"x": tuple(OUTLIERS)})
    (check,) = verify(model.source, model.path, [Effect.ROUNDING], data, tmp_path / "v").checks
    assert check.unknown
    assert "the original is as far from its definition in apps" in check.reason
    (check,) = verify(model.source, model.path, [Effect.EXACT], data, tmp_path / "e").checks
    assert check.passed


def test_without_the_memory_for_an_apps_session_it_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = checked(four_bits(tmp_path), tmp_path, prepacked=False)
    assert (check.unknown, check.session) == (True, "without prepacking")
    assert "MatMulNBits" in check.reason
    monkeypatch.setattr("pipeline.core.workers.memory_budget", lambda: 600 << 20)
    assert (room_for(90 << 20).prepacked, room_for(200 << 20).prepacked) == (True, False)


def test_errors_name_the_file_that_fails(tmp_path: Path) -> None:
    model = four_bits(tmp_path)
    wrong = {"x": np.zeros((1, 3), np.float32)}
    with pytest.raises(ModelError, match="the original model fails"):
        outputs_of(model, wrong, ORIGINAL)
    with pytest.raises(ModelError, match="the changed model fails"):
        outputs_of(model, wrong, CpuSettings(role=Role.CHANGED))


NORMALIZED = """<ir_version: 8, opset_import: ["" : 15]> g (uint8[2,8] x) => (float[2,8] y)
<float[8] scale = {1,1,1,1,1,1,1,1}, float[8] b = {1,1,1,1,1,1,1,1}, float two = {2}, float e = {0.00001}> {
    c = Cast <to = 1> (x) m = ReduceMean <axes = [-1]> (c) d = Sub (c, m) p = Pow (d, two)
    v = ReduceMean <axes = [-1]> (p) a = Add (v, e) s = Sqrt (a) q = Div (d, s) g = Mul (q, scale) y = Add (g, b)
}"""


@pytest.mark.parametrize("level", [Level.EXTENDED, Level.ALL])
def test_an_optimizer_that_breaks_a_model_is_named_with_the_level_that_works(tmp_path: Path, level: Level) -> None:
    """LayerNormFusion of 1.32 swallows the Cast of what no kernel normalizes."""
    model = loaded(onnx.parser.parse_model(NORMALIZED), tmp_path)
    with pytest.raises(ModelError, match="LayerNormFusion breaks the model from level extended on") as caught:
        saved_at(model, level, PassContext(folder=tmp_path, where="m.onnx"))
    assert caught.value.remedy == "use level basic, which loads; the model itself is sound"


def test_a_model_that_no_level_loads_is_to_blame_itself() -> None:
    told = ModelError("its graph breaks ONNX's rules", where="m.onnx", why="", remedy="")
    assert broken_by_optimizer(b"no model", Level.ALL, ValueError("Type Error"), told) is told
