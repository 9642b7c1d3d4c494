"""The optimized model as ONNX: by the pass optimize, and by `convert --format onnx`."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

from tests import onnx_samples
from tests.command import ROOT, ort_mobile

MNIST = ROOT / "build_configs/examples/mnist/mnist.onnx"
FUSED = "com.microsoft:FusedConv"


def operators(path: Path) -> list[str]:
    """The operators of a file, with the domains that are not ONNX's own."""
    model = onnx.load(path)
    assert {entry.domain for entry in model.opset_import} == {node.domain for node in model.graph.node} | {""}
    return [":".join(filter(None, (node.domain, node.op_type))) for node in model.graph.node]


@pytest.mark.parametrize(
    ("level", "nodes", "fused"), [("basic", 8, 0), ("extended", 6, 2), ("layout", 6, 2), ("all", 6, 2)]
)
def test_the_pass_saves_what_a_session_makes_of_the_model(level: str, nodes: int, fused: int, tmp_path: Path) -> None:
    """transform compares the outputs itself: exit code 0 says that they are the original's."""
    out = tmp_path / "out.onnx"
    done = ort_mobile("transform", MNIST, out, "--do", f"optimize:level={level}")
    found = operators(out)
    assert (len(found), found.count(FUSED)) == (nodes, fused)
    assert ("only ONNX Runtime loads this: it has com.microsoft:FusedConv 2" in done.err) == bool(fused)


def test_the_layout_of_this_processor_is_for_amd64_and_says_so(tmp_path: Path) -> None:
    done = ort_mobile("transform", MNIST, tmp_path / "o.onnx", "--do", "optimize:level=all:platform=amd64")
    assert "com.microsoft.nchwc:Conv" in operators(tmp_path / "o.onnx")
    assert "blocks of this computer's processor" in done.err


def test_what_other_runtimes_cannot_load_is_refused_where_that_is_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = ort_mobile("transform", MNIST, out, "--do", "optimize:level=extended:loads_in=any", code=1)
    assert "it has com.microsoft:FusedConv 2" in done.err
    assert not out.exists()
    ort_mobile("transform", MNIST, out, "--do", "optimize:level=basic:loads_in=any")
    assert "Gemm" in operators(out)


@pytest.mark.parametrize("sample", ["conv_bn", "quantized", "linear"])
def test_convert_writes_onnx_that_equals_the_original(sample: str, tmp_path: Path) -> None:
    """Weights over 4 MB are ranges of the source file: they must come along."""
    model = onnx_samples.linear(1200) if sample == "linear" else getattr(onnx_samples, sample)()
    path = onnx_samples.save(model, tmp_path / "m.onnx")
    found = ort_mobile("convert", path, "--output", tmp_path / "out", "--format", "onnx", "--check", "--json", "-")
    rows = found.document()["artifacts"]
    assert [row["file"] for row in rows] == [f"m.{level}-onnx.onnx" for level in ("none", "basic", "extended", "all")]
    assert all(check["passed"] or check["max_abs_error"] == 0 for row in rows for check in row["checks"])
    for row in rows:
        file = tmp_path / "out" / row["file"]
        assert bool(row["notes"]) == any(":" in name for name in operators(file))
        if not row["notes"]:
            onnx.checker.check_model(onnx.load(file), full_check=True)
        assert file.stat().st_size == row["size_bytes"]
        onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert (tmp_path / "out/required_operators.config").is_file()


def test_another_style_with_the_format_is_a_mistake(tmp_path: Path) -> None:
    asked = ("--format", "onnx", "--style", "fixed,runtime", "--level", "extended")
    done = ort_mobile("convert", MNIST, "--output", tmp_path, *asked, code=2)
    assert "--format onnx is --style onnx; use one of them" in done.err
    assert not list(tmp_path.glob("mnist*"))
