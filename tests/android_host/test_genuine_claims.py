"""What genuine libraries claim, beside our rules, and the EP-aware files that they save."""

import importlib.metadata
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from device_runner.android_host.device import Phone
from device_runner.android_host.inspection import Session, ask
from device_runner.library import LibraryFacts
from device_runner.providers import NNAPI
from device_runner.spec import OptimizationLevel
from pipeline.core.errors import ModelError
from pipeline.model.ort_format import read_ort
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.library_claims import LibraryClaims, same_claims
from pipeline.partition.many import judge_by_provider
from pipeline.partition.reference import SAVE_ORT, claims_of_many, claims_of_named, reference_aware
from tests.android_host.conftest import OLDEST, fetch
from tests.arm64_agreement import members, unpacked
from tests.command import ort_mobile

pytestmark = pytest.mark.android_host

SETTINGS = {str(level): (level, False) for level in range(27, 32)} | {"28-nchw": (28, True), "30-nchw": (30, True)}

BESIDE = pytest.mark.parametrize("every", [2 * len(SETTINGS), pytest.param(1, marks=pytest.mark.sweep)])
"""Each so-many-th model, others in each setting; all where C or how libraries are asked changed.

In each run recorded labels hold our rules in all of these settings: tests/partition/test_android_labels.py.
"""


def _ours(models: Sequence[Path], release: str, level: int, nchw: bool) -> list[ModelAnswer]:
    if importlib.metadata.version("onnxruntime") != release:
        pytest.skip(f"shapes must come from onnxruntime {release}, which is not installed")
    settings = Settings(
        provider="nnapi",
        ort_release=(int(release.split(".")[0]), int(release.split(".")[1])),
        api_level=level,
        nnapi_flags=("USE_NCHW",) if nchw else (),
    )
    return list(judge_by_provider(models, [settings], Optimize.NONE)[0])


AT_30 = Settings(provider=NNAPI, api_level=30)


def reference_claims(model: Path, library: str, settings: Settings, *, reasons: bool = False) -> LibraryClaims:
    return next(claims_of_many([model], library, settings, reasons=reasons))


def _operators(path: Path) -> Counter[str]:
    return Counter(node.operator for node in read_ort(path).graph.nodes)


def _compare(models: Sequence[Path], library: LibraryFacts, setting: str) -> tuple[list[str], Counter[str]]:
    """Models whose nodes go by their first outputs: what is said of each, and how often."""
    level, nchw = SETTINGS[setting]
    asked = Settings(provider=NNAPI, api_level=level, nnapi_flags=("USE_NCHW",) if nchw else ())
    different, counts = [], Counter[str]()
    for ours, theirs in zip(
        _ours(models, library.release, level, nchw), claims_of_named(models, library, asked), strict=True
    ):
        if ours.error or theirs.error:
            # A library that cannot make a session at all (no kernel, a crash of its own) shows no claim.
            counts["ours only" if ours.error and not theirs.error else "no session"] += 1
        elif same_claims(theirs, ours.partitions):
            counts["same"] += 1
        else:
            different.append(f"{theirs.id}: {ours.partitions} but {theirs.partitions}")
    return different, counts


Named = Callable[[str, int, int], list[Path]]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Named:
    """Each so-many-th model of an archive from a place on, each node named after its first output; written once."""

    @cache
    def written(archive: str, every: int, first: int) -> list[Path]:
        return list(unpacked(members(archive)[first::every], tmp_path_factory.mktemp(archive)))

    return lambda archive, every, place: written(archive, every, place % every)


@BESIDE
@pytest.mark.parametrize("setting", SETTINGS)
def test_our_rules_are_the_librarys_on_real_models(
    library: LibraryFacts, named: Named, setting: str, every: int
) -> None:
    models = named("real", every, list(SETTINGS).index(setting))
    different, counts = _compare(models, library, setting)
    assert different == []
    assert counts["same"] == len(models) >= 71 // every


@BESIDE
@pytest.mark.parametrize("setting", SETTINGS)
def test_our_rules_are_the_librarys_on_random_graphs(
    library: LibraryFacts, named: Named, setting: str, every: int
) -> None:
    models = named("dags", every, list(SETTINGS).index(setting))
    different, counts = _compare(models, library, setting)
    assert different == []
    assert counts["same"] >= len(models) - 1 > 200 // every
    assert counts["ours only"] == 0


@pytest.mark.sweep
@pytest.mark.parametrize("setting", ["27", "30"])
def test_our_rules_are_the_librarys_on_one_operator_models(library: LibraryFacts, named: Named, setting: str) -> None:
    models = named("ops", 1, 0)
    different, counts = _compare(models, library, setting)
    assert different == []
    assert counts["ours only"] == 0
    assert counts["same"] >= 0.97 * len(models)


def test_the_library_says_why_it_refuses(library: LibraryFacts, real_models: list[Path]) -> None:
    model = next(path for path in real_models if path.name == "mnist.batch.onnx")
    claims = reference_claims(model, library.path, AT_30, reasons=True)
    assert claims.partitions == ()
    assert any("dynamic" in reason.lower() for reason in claims.reasons.values())


def test_stop_ops_reach_the_library(library: LibraryFacts, mnist: Path) -> None:
    free = reference_claims(mnist, library.path, AT_30)
    stopped = reference_claims(mnist, library.path, Settings(provider=NNAPI, api_level=30, stop_ops=("Relu",)))
    assert len(stopped.nodes) < len(free.nodes)


def test_an_old_library_tells_nodes_but_no_groups(mnist: Path) -> None:
    fetch(OLDEST)
    claims = reference_claims(mnist, OLDEST, AT_30)
    newer = reference_claims(mnist, fetch("1.29.0").path, AT_30)
    assert claims.partitions is None
    assert claims.nodes == newer.nodes != frozenset()


def test_what_is_no_model_is_an_error(library: LibraryFacts, tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(b"no model at all")
    with pytest.raises(ModelError, match="not a usable ONNX model"):
        reference_claims(path, library.path, Settings(provider=NNAPI))


def test_a_model_that_the_library_refuses_is_an_answer(library: LibraryFacts, op_models: Path) -> None:
    claims = reference_claims(op_models / "conv" / "f64.onnx", library.path, Settings(provider=NNAPI))
    assert claims.error is not None
    assert "Could not find an implementation" in claims.error
    assert not claims.crashed


def test_an_aware_file_by_the_library_keeps_what_it_claims(
    library: LibraryFacts, real_models: list[Path], tmp_path: Path
) -> None:
    model = next(path for path in real_models if path.name == "mobilenet_v1.base.onnx")
    target = tmp_path / "aware.ort"
    for level in (OptimizationLevel.BASIC, OptimizationLevel.ALL):
        reference_aware(model, target, library, AT_30, level)
        operators = _operators(target)
        assert operators["ai.onnx:Conv"] >= 13
        assert not any("FusedConv" in name or "Reorder" in name for name in operators)
    cpu = Settings(provider=NNAPI, api_level=26)
    reference_aware(model, target, library, cpu, OptimizationLevel.EXTENDED)
    assert "com.microsoft:FusedConv" in _operators(target)
    assert [path.name for path in tmp_path.iterdir()] == ["aware.ort"]


LEVELS = (OptimizationLevel.BASIC, OptimizationLevel.EXTENDED, OptimizationLevel.ALL)


@pytest.mark.parametrize("every", [4 * len(LEVELS), pytest.param(1, marks=pytest.mark.sweep)])
def test_ours_and_genuine_aware_files_have_the_same_operators(
    library: LibraryFacts, real_models: list[Path], tmp_path: Path, every: int
) -> None:
    """What the wheel saves with our claims, what the library's own session saves: a twelfth of the models at each
    level, and all of them. Where fusions of the library's session swallow what it claimed, ours keeps more of it."""
    if importlib.metadata.version("onnxruntime") != library.release:
        pytest.skip(f"our files are made by the installed onnxruntime, which is not {library.release}")
    saved, different = tmp_path / "genuine.ort", []
    asked = ("--reference", "none", "--ep", "nnapi", "--api-level", "30", "--abi", "x86_64", "--no-config")
    for place, level in enumerate(LEVELS):
        models = {path.name: path for path in real_models[place % every :: every]}
        words = ("--level", level, "--ort-release", library.release.rpartition(".")[0], *asked)
        ort_mobile(
            "convert", *models.values(), "--output", tmp_path / level, *words, "--json", tmp_path / "answer.json"
        )
        artifacts = json.loads((tmp_path / "answer.json").read_text())["artifacts"]
        assert len(artifacts) == len(models)
        for artifact in artifacts:
            reference_aware(models[Path(artifact["model"]).name], saved, library, AT_30, level, config=STOCK)
            ours = tmp_path / level / artifact["file"]
            if _operators(saved) != _operators(ours):
                kept, left = judge_by_provider([ours, saved], [AT_30], Optimize.NONE)[0]
                different += [] if kept.claimed > left.claimed else [artifact["file"]]
    assert different == []


STOCK = {"session.qdqisint8allowed": "0"}
"""What the stock converter sets unless the target is arm."""


MNIST_AS_IT_STANDS = {
    27: (("dense.matrix", "plus1", "relu1"), ("plus2", "relu2"), ("logits",)),
    28: (
        ("conv1", "dense.matrix", "plus1", "relu1", "pool1", "conv2", "plus2", "relu2", "pool2", "features"),
        ("logits",),
    ),
}
"""The example's matrix is reshaped in the graph: its MatMul has no constant, and parts the last Add from the rest."""

MNIST_AFTER_BASIC = {
    27: (("Relu",), ("Relu",)),
    28: (("Conv", "Relu", "MaxPool", "Conv", "Relu", "MaxPool", "Reshape", "Gemm"),),
}
"""The Adds are folded into Conv and Gemm: at level 27 two partitions are left, of one Relu each."""


@pytest.mark.parametrize("level", range(27, 32))
def test_mnist_is_one_partition_from_level_28_on_and_two_small_ones_at_27(
    library: LibraryFacts, mnist: Path, tmp_path: Path, level: int
) -> None:
    """After level basic, which is what ships; of the file as it stands the library takes one more, the last Add."""
    row = min(level, 28)
    assert (
        reference_claims(mnist, library.path, Settings(provider=NNAPI, api_level=level)).partitions
        == MNIST_AS_IT_STANDS[row]
    )
    session = Session(level=OptimizationLevel.BASIC, config=SAVE_ORT, phone=Phone(api_level=level))
    (answer,) = ask(library, [("basic", mnist, tmp_path / "saved.ort")], session)
    groups = [[operator for _, _, operator in one.nodes] for one in answer.subgraphs if "Nnapi" in one.provider]
    assert sorted(map(tuple, groups)) == sorted(MNIST_AFTER_BASIC[row])
