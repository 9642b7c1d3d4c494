"""What is said of a provider counts the model's own nodes, whatever an app's data needs beside them."""

from pathlib import Path

import onnx
import pytest

from pipeline.config.app_data import Gives
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.library_claims import LibraryClaims, diff_claims
from tests.command import ort_mobile
from tests.features.app_data.samples import classifier, labels
from tests.features.app_data.test_attach import RGBA, attached

PROVIDERS = ("nnapi", "coreml-mlprogram", "webgpu", "xnnpack")


def whole(folder: Path) -> Path:
    """The classifier from an image to labels, and `plain.onnx` beside it without its ends, for one image."""
    attached(classifier(), folder, RGBA, Gives(classes=str(labels(folder)), softmax=True))
    plain = classifier()
    for value in (*plain.graph.input, *plain.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(plain, folder / "plain.onnx")
    return folder / "made.onnx"


def answer(file: Path, provider: str, optimize: Optimize = Optimize.BASIC) -> ModelAnswer:
    request = PartitionRequest(
        source=SourceModel(path=str(file)), settings=Settings(provider=provider), optimize=optimize, likely=True
    )
    given = judge(request)
    assert not given.error
    return given


@pytest.mark.parametrize("optimize", Optimize)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_takes_as_much_of_a_model_with_ends(tmp_path: Path, provider: str, optimize: Optimize) -> None:
    with_ends = answer(whole(tmp_path), provider, optimize)
    plain = answer(tmp_path / "plain.onnx", provider, optimize)
    for name in ("nodes", "claimed", "copies", "refused_operators", "dynamic", "fixed", "operators", "cuts"):
        assert getattr(with_ends, name) == getattr(plain, name), name
    assert [len(group) for group in with_ends.partitions] == [len(group) for group in plain.partitions]
    assert not plain.ends
    assert len(with_ends.ends) == 9
    assert 0 < with_ends.claimed_ends < 9


def test_an_image_of_any_size_leaves_sizes_open_where_the_model_meets_them(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    m (uint8[1, height, width, 3] image) => (float[1, 3, h, w] y) {
        floats = Cast<to = 1>(image)
        planes = Transpose<perm = [0, 3, 1, 2]>(floats)
        y = Relu(planes)
    }"""
    model = onnx.parser.parse_model(text)
    for node in model.graph.node[:2]:
        node.name = f"app_data/takes/{node.op_type}"
    onnx.save(model, tmp_path / "open.onnx")
    given = answer(tmp_path / "open.onnx", "nnapi")
    assert (given.nodes, given.claimed, len(given.ends)) == (1, 0, 2)
    assert given.dynamic == ("height", "width")


def test_conditions_are_about_the_models_own_nodes(tmp_path: Path) -> None:
    file = whole(tmp_path)
    conditions = [
        word for text in ("coverage<1", "partitions>1", "refused:TopK", "warning") for word in ("--fail-on", text)
    ]
    done = ort_mobile("partition", file, "--ep", "nnapi", *conditions)
    assert "5 of 5 nodes supported (100 %)" in done.out
    assert "the ends (9 nodes, which make tensors of the app's data and back) run on the CPU" in done.out
    assert "verdict: use the provider" in done.out
    assert "dynamic" not in done.out
    done = ort_mobile("check", file, "--fail-on", "warning")
    assert "5 nodes" in done.out
    assert "9 nodes make tensors of the app's data and back" in done.out
    assert "dynamic" not in done.out


def test_a_library_is_compared_by_the_models_own_nodes(tmp_path: Path) -> None:
    ours = answer(whole(tmp_path), "nnapi", Optimize.NONE)
    (group,) = ours.partitions
    claims = LibraryClaims(id="m", release="1.29.0", partitions=((*group, ours.ends[-1]), (ours.ends[0],)), count=2)
    settings = Settings(provider="nnapi", ort_release=(1, 29))
    assert diff_claims(ours, claims, settings, has_rules=True).same
    less = LibraryClaims(id="m", release="1.29.0", partitions=(group[1:],), count=1)
    assert diff_claims(ours, less, settings, has_rules=True).same is False
