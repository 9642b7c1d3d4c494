"""Outputs that are not finite where the float original's are: a failed check with the first such node as its reason."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipeline.check.compare import compare_outputs, read_tensor, remedy_of, sqnr_db
from pipeline.check.reference import make_reference
from pipeline.check.result import Reference
from pipeline.config.tables import Step
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel
from pipeline.passes.run import transform
from tests.onnx_samples import loud_spectrum, make, parsed_nodes, save, value


def reference(model: onnx.ModelProto, folder: Path, **options: object) -> Reference:
    """That of a model in half precision, beside the float original, on random inputs."""
    original = SourceModel(path=str(save(model, folder / "float.onnx")))
    step = Step(do="fp16", options=options)
    transform(original, (step,), str(folder), "half.onnx", check=False)
    half = SourceModel(path=str(folder / "half.onnx"))
    (folder / "work").mkdir(exist_ok=True)
    return make_reference(half, {}, Dataset(), str(folder / "tensors"), str(folder / "work"), original=original)


def test_an_overflow_fails_whatever_a_file_gives_and_names_the_node(tmp_path: Path) -> None:
    found = reference(loud_spectrum(), tmp_path)
    expected = {tensor.name: read_tensor(tensor) for tensor in found.outputs}
    (original,) = (read_tensor(tensor) for tensor in found.original)
    assert np.isinf(expected["y"]).any()
    assert np.isfinite(original).all()
    for given in (expected["y"], original):
        (check,) = compare_outputs(expected, {"y": given}, found.tolerance())
        assert check.failed
        assert check.reason.startswith("half precision overflows at Pow 'Power': ")
        assert "half precision ends at 65504" in check.reason
        assert f"the float original's largest is {original.max():.4g}" in check.reason
        assert "only NaN" not in check.reason
        assert "--keep-float 'Power,Turn,Flat,Floor,Loudness'" in remedy_of(check)


def test_what_the_remedy_leaves_float_is_finite(tmp_path: Path) -> None:
    """The converter casts between neighbours that stay float: what is in between would overflow all the same."""
    found = reference(loud_spectrum(), tmp_path, exclude=["Power", "Turn", "Flat", "Floor", "Loudness"])
    assert not found.refuted
    (half,), (original,) = ([read_tensor(tensor) for tensor in part] for part in (found.outputs, found.original))
    sqnr = sqnr_db(original, half)
    assert isinstance(sqnr, float)
    assert sqnr > 50


def test_an_original_that_is_not_finite_itself_refutes_nothing(tmp_path: Path) -> None:
    """A mask of minus infinity is what some models mean."""
    nodes = parsed_nodes("y = Add (x, mask)")
    mask = np.where(np.arange(16) % 2, -np.inf, 0.5).astype(np.float32)[None]
    model = make(nodes, [value("x", [1, 16])], [value("y", [1, 16])], [numpy_helper.from_array(mask, "mask")])
    assert not reference(model, tmp_path).refuted


@pytest.mark.parametrize(("factor", "unsteady"), [(1.0, ()), (1000.0, ("y",))])
def test_outputs_that_roundings_to_half_change_show_nothing(
    factor: float, unsteady: tuple[str, ...], tmp_path: Path
) -> None:
    """Inputs and outputs stay float: a device rounds to half all the same."""
    nodes = parsed_nodes("turned = Mul(x, factor)  y = Sin(turned)")
    constants = [numpy_helper.from_array(np.array([factor], np.float32), "factor")]
    model = make(nodes, [value("x", [1, 16])], [value("y", [1, 16])], constants)
    assert reference(model, tmp_path, keep_io=True).tolerance().unsteady == unsteady


@pytest.mark.parametrize(
    ("given", "decibel"),
    [([3.0, 4.0], None), ([3.0, 4.5], 20.0), ([3.0, np.inf], "unset"), ([3.0, 4.0, 5.0], "unset")],
)
def test_signal_to_noise(given: list[float], decibel: object) -> None:
    found = sqnr_db(np.array([3, 4], np.float32), np.array(given, np.float32))
    assert ("unset" if not isinstance(found, float | None) else found) == decibel
    assert sqnr_db(np.array([np.inf, 4.0]), np.array([np.inf, 4.0])) is None
