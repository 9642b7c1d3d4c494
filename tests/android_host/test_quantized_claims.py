"""Claims of models in every precision: our rules beside the genuine library, node by node."""

import zipfile
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


@pytest.fixture(scope="module")
def in_every_precision(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The models in all precisions that apply and that no search decides."""
    folder, scratch = tmp_path_factory.mktemp("precisions"), tmp_path_factory.mktemp("scratch")
    for name in MODELS:
        with zipfile.ZipFile(oracle / "real.zip") as archive:
            model = load(Path(archive.extract(f"{name}.base.onnx", scratch)), scratch)
        data = samples(model, 2)
        for precision, row in PRECISIONS.items():
            if not row.by_search:
                try:
                    made = run_passes(model, row.steps, context(scratch, data)).model
                except NotApplicable:
                    continue
                write_model(made, folder / f"{name}.{precision}.onnx", external=False)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("level", ["28", "31"])
def test_no_node_of_a_quantized_model_differs(
    library: LibraryFacts, in_every_precision: list[Path], tmp_path: Path, level: str
) -> None:
    assert len(in_every_precision) >= 11 * len(MODELS)
    folder = in_every_precision[0].parent
    asked = ["--reference", library.release, "--api-level", level, "--optimize", "basic"]
    result, document = call(tmp_path, str(folder), "--ep", "nnapi", *asked)
    reference = document["reference"]
    assert (reference["different"], len(reference["models"])) == (0, len(in_every_precision)), result.text
    assert [one["path"] for one in reference["models"] if not one["same"]] == []
    claimed = {Path(one["path"]).name.split(".")[1] for one in document["models"] if one["claimed"]}
    assert "u8u8nnapi" in claimed
