"""Whether a session is made with each NNAPI operator at each API level: our forecast beside the genuine library."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from device_runner.android_host.device import Phone
from device_runner.android_host.inspection import Session, ask
from device_runner.library import LibraryFacts
from device_runner.spec import NnapiFlag
from pipeline.core.releases import line_of
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.providers.nnapi.rules import TABLE
from tests.ground_truth import ORACLE
from tests.oracle_agreement import labels

pytestmark = pytest.mark.android_host

FLOAT, BYTES = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8
OF_EACH = 2
ALWAYS = ("conv_group/c4_g2_m4_dil0", "conv_group/c4_g4_m4_dil0", "lrn/between")


def _chosen(folder: Path) -> Iterator[tuple[tuple[str, int], Path]]:
    """Some claimed one-operator models of the ground truth for each operator of the table, float and quantized."""
    claimed = {
        name: {output for group in row["claim"] for output in group}
        for (setting, name), row in labels(ORACLE, "ops", "1.28").items()
        if setting == "nnapi30" and row["error"] is None
    }
    counts: dict[tuple[str, int], int] = {}
    with zipfile.ZipFile(ORACLE / "ops.zip") as packed:
        for name in sorted(claimed):
            model = onnx.load_from_string(packed.read(f"{name}.onnx"))
            quantized = any(node.op_type == "DequantizeLinear" for node in model.graph.node)
            subjects = {(node.op_type, BYTES if quantized else FLOAT) for node in model.graph.node} & {
                (operator, kind) for operator in TABLE for kind in (FLOAT, BYTES)
            }
            for subject in subjects if claimed[name] else ():
                counts[subject] = counts.get(subject, 0) + 1
                if counts[subject] <= OF_EACH or name in ALWAYS:
                    yield subject, Path(packed.extract(f"{name}.onnx", folder))


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = list(_chosen(tmp_path_factory.mktemp("loads")))
    assert {operator for (operator, _), _ in found} >= TABLE.keys()
    return sorted({path for _, path in found})


NCHW = [
    pytest.param(level, (NnapiFlag.USE_NCHW,), marks=pytest.mark.nightly if level % 2 else ())
    for level in range(27, 32)
]


@pytest.mark.parametrize(("level", "flags"), [*((level, ()) for level in range(27, 32)), *NCHW])
def test_the_forecast_of_every_operator_is_what_the_library_does(
    library: LibraryFacts, chosen: list[Path], level: int, flags: tuple[NnapiFlag, ...]
) -> None:
    settings = make_settings(
        "nnapi", release=str(line_of(library.release)), android=True, api_level=level, nnapi_flags=flags
    )
    questions = [(str(number), path, None) for number, path in enumerate(chosen)]
    session = Session(flags=flags, phone=Phone(api_level=level))
    different = []
    for path, theirs in zip(chosen, ask(library, questions, session), strict=True):
        ours = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings))
        assert ours.load is not None, ours.error
        if ours.claimed and bool(ours.load.error) != theirs.failed:
            different.append(f"{path.parent.name}/{path.stem}: {ours.load.error} but {theirs.message}")
    assert different == []


def test_leaky_relu_below_level_29_is_claimed_and_not_built(library: LibraryFacts, chosen: list[Path]) -> None:
    path = next(path for path in chosen if path.parent.name == "leakyrelu")
    for level, loads in ((28, False), (29, True)):
        session = Session(phone=Phone(api_level=level))
        (theirs,) = ask(library, [("leaky", path, None)], session)
        settings = make_settings("nnapi", release=str(line_of(library.release)), android=True, api_level=level)
        ours = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings))
        assert ours.load is not None
        assert ours.claimed > 0
        assert (theirs.failed, ours.load.error is None) == (not loads, loads)
