"""Errors of devices, mapped to the line that is missing; texts from ONNX Runtime itself where it says them here."""

from pathlib import Path

import pytest

from pipeline.model.ort_format import read_ort
from pipeline.required_ops import needs_of, parse
from pipeline.required_ops.proof import read_log
from tests.ort_models import convert, parsed

CONFIG = parse(
    'ai.onnx;11;Conv{"inputs": {"0": ["float"]}}\n'
    'ai.onnx;13;Gather{"inputs": {"0": ["float"], "1": ["int32_t"]}},Reshape\n',
    "x",
)
INCOMPATIBLE = (
    "Failed to find kernel for Conv(11) (node:'c' ep:'CPUExecutionProvider'). However the types are incompatible. "
    "This op has been implemented only for the following types (tensor(float),), "
    "but the node in the model has the following type (tensor(double))"
)
CUT_AT_RUN = (
    "Non-zero status code returned while running Gather node. Name:'g0' "
    "Status Message: Gather Tind type not supported in this build."
)


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("E ort: Could not find an implementation for Erf(13) node with name 'e'", "ai.onnx;13;Erf", "not listed"),
        ("Failed to find kernel for com.microsoft.FusedConv(1) (node:'n' ep:'CPUExecutionProvider'). Kernel not found",
         "com.microsoft;1;FusedConv", "not listed"),
        ("Could not find an implementation for Relu(14) node with name ''", "ai.onnx;14;Relu", "not listed"),
        (INCOMPATIBLE, 'ai.onnx;11;Conv{"inputs": {"0": ["double", "float"]}}', "without double"),
        ("Could not find an implementation for Conv(11) node with name 'c'", "", "restricted to types"),
        ("Could not find an implementation for Reshape(13) node with name 'c'", "", "is in this config"),
        ("[E] The ORT format model version [4] is not supported in this build 1.31.1", "", "format version"),
        ("This build doesn't support ORT format models older than version 5.", "", "format version"),
        ("Failed to find kernel def hash (123) in kernel registries", "", "1.12"),
        ("ORT model verification failed.", "", "no whole"),
        ("ONNX format model is not supported in this build.", "", "minimal build"),
        ("NNAPI execution provider is not supported in this build.", "", "not compiled"),
        ("SparseTensor is not supported in this build", "", "left out more"),
        ("Transpose of element size not supported in this build. Size=8", "", "Transpose (inputs 0)"),
    ],
)  # fmt: skip
def test_messages(text: str, line: str, cause: str) -> None:
    (finding,) = read_log(f"I app: starting\n{text}\nI app: done\n", CONFIG)
    assert finding.line == line
    assert cause in finding.why
    assert finding.remedy
    assert finding.what in text


def test_other_lines_say_nothing() -> None:
    assert read_log("I app: Conv(11) ran\nW app: slow\n\n", CONFIG) == ()


def test_messages_that_repeat_are_told_once() -> None:
    text = "Could not find an implementation for Erf(13) node with name 'e'\n"
    assert len(read_log(text * 1000, CONFIG)) == 1


def test_the_failing_node_gives_the_types(tmp_path: Path) -> None:
    model = parsed("g (float[2, 2] x, int64[1] i) => (float[1, 2] y) { [g0] y = Gather (x, i) }")
    needs = needs_of(read_ort(convert(model, tmp_path / "gather.ort", level="none")))
    kernel = "Could not find an implementation for Gather(13) node with name 'g0'"
    for text in (kernel, CUT_AT_RUN):
        (finding,) = read_log(text, CONFIG, [needs])
        assert finding.line == 'ai.onnx;13;Gather{"inputs": {"0": ["float"], "1": ["int32_t", "int64_t"]}}'


def test_what_onnx_runtime_says_here_is_understood() -> None:
    """The CPU has no kernel for Erf of double: the same message as for a kernel that was left out."""
    import onnxruntime

    model = parsed("g (double[2] x) => (double[2] y) { [the_node] y = Erf (x) }")
    with pytest.raises(Exception, match="Erf") as caught:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (finding,) = read_log(str(caught.value), CONFIG)
    assert finding.line == "ai.onnx;13;Erf"
    assert "the_node" in finding.what
