"""Claims of models in every precision: our rules beside the genuine library, node by node."""

import contextlib
import zipfile
from itertools import product
from pathlib import Path

import pytest

from device_runner.library import LibraryFacts
from pipeline.partition.subject import write_model
from pipeline.passes.base import NotApplicable
from pipeline.passes.precisions import PRECISIONS
from pipeline.passes.registry import run_passes
from tests.android_host.test_partition_reference import call
from tests.passes.quantized_models import context, load
from tests.passes.test_real_models import samples

pytestmark = pytest.mark.android_host

MODELS = ("mnist", "blazeface", "fsrcnn", "einsum_attention")
"""Small ones of different kinds: convolutions, PRelu and ConvTranspose, MatMul with Softmax."""


def write_models(oracle: Path, folder: Path, scratch: Path, first: int, every: int) -> list[Path]:
    """Each so-many-th pair of model and precision from a place on, of those that apply and that no search decides."""
    fixed = {precision: row for precision, row in PRECISIONS.items() if not row.by_search}
    for name, precision in list(product(MODELS, fixed))[first::every]:
        with zipfile.ZipFile(oracle / "real.zip") as archive:
            model = load(Path(archive.extract(f"{name}.base.onnx", scratch)), scratch)
        with contextlib.suppress(NotApplicable):
            made = run_passes(model, fixed[precision].steps, context(scratch, samples(model, 2))).model
            write_model(made, folder / f"{name}.{precision}.onnx", external=False)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("level", "first", "claims"), [("28", 2, "u8u8nnapi"), ("31", 1, "u8s8nnapi")])
def test_no_node_of_a_quantized_model_differs(
    library: LibraryFacts, oracle: Path, tmp_path: Path, level: str, first: int, claims: str, every: int
) -> None:
    """A quarter of the pairs at each level, even precisions at one and odd ones at the other; at night all of them."""
    folder, scratch = tmp_path / "models", tmp_path / "scratch"
    folder.mkdir()
    paths = write_models(oracle, folder, scratch, first % every, every)
    assert {path.name.split(".")[0] for path in paths} == set(MODELS)
    assert len(paths) >= 11 * len(MODELS) // every
    asked = ["--reference", library.release, "--api-level", level, "--optimize", "basic"]
    result, document = call(tmp_path, str(folder), "--ep", "nnapi", *asked)
    reference = document["reference"]
    assert (reference["different"], len(reference["models"])) == (0, len(paths)), result.text
    assert [one["path"] for one in reference["models"] if not one["same"]] == []
    claimed = {Path(one["path"]).name.split(".")[1] for one in document["models"] if one["claimed"]}
    assert claims in claimed
