"""Real models of the ground truth, and passes run on them as a pipeline runs them."""

import zipfile
from pathlib import Path

import onnx

from pipeline.check.compare import OutputCheck
from pipeline.dataset import Dataset
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.sources import SourceModel
from pipeline.passes.base import PassContext, PassResult
from pipeline.passes.registry import find_pass, parse_step, run_passes
from pipeline.passes.run import Verification, verify
from pipeline.passes.saving import save_model
from pipeline.passes.value_types import fill_output_shapes
from tests.ground_truth import ORACLE


def extract(name: str, folder: Path) -> Path:
    """A model of the ground truth as a file."""
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        return Path(archive.extract(f"{name}.onnx", folder))


def loaded(path: Path, folder: Path) -> LoadedModel:
    return load_model(SourceModel(path=str(path)), folder)


def run(path: Path, folder: Path, *steps: str) -> PassResult:
    """The steps on a model file; asserts that the model that they were given is as before."""
    model = loaded(path, folder)
    before = model.proto.SerializeToString(deterministic=True)
    context = PassContext(folder=folder, where=path.name)
    result = run_passes(model, [parse_step(step) for step in steps], context)
    assert model.proto.SerializeToString(deterministic=True) == before, "passes never change the model that they get"
    assert [parse_step(change.step.text) for change in result.changes] == [parse_step(step) for step in steps]
    return result


def compare(path: Path, result: PassResult, folder: Path, data: Dataset | None = None) -> Verification:
    """The saved result against the model that it was made of."""
    target = folder / "result.onnx"
    save_model(result.model, target)
    _check(target)
    effects = [find_pass(change.step.do).effect for change in result.changes]
    return verify(SourceModel(path=str(path)), target, effects, data or Dataset(), folder / "check")


def _check(path: Path) -> None:
    """As onnx.checker has it, which refuses outputs without shapes: the ground truth has such."""
    model = onnx.load(path)
    fill_output_shapes(model)
    onnx.checker.check_model(model)


def assert_same(path: Path, result: PassResult, folder: Path, data: Dataset | None = None) -> tuple[OutputCheck, ...]:
    """Asserts that every output that both have was compared and is right."""
    found = compare(path, result, folder, data)
    assert found.why == ""
    assert found.checks
    assert all(check.passed for check in found.checks), found.checks
    return found.checks
