"""What of a file keeps CUDA from capturing its graph."""

from pathlib import Path

import msgspec
import onnx
import pytest

from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime
from pipeline.compat.rules import check_artifact, facts_of
from pipeline.core.releases import Release
from pipeline.model.ort_format import read_artifact
from tests.ort_models import convert, parsed

CAPTURING = {"cuda": "enable_cuda_graph", "tensorrt": "trt_cuda_graph_enable"}
BRANCHES = """(bool c, float[2] x) => (float[2] y) {
    y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) }, else_branch = e () => (float[2] b) { b = Neg (x) }>
}"""
COUNTS = "(float[2, 3] x) => (int64[2, n] y) { y = NonZero (x) }"
PLAIN = "(float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }"


@pytest.mark.parametrize("provider", CAPTURING)
@pytest.mark.parametrize(
    ("text", "what", "why"),
    [(BRANCHES, "cannot capture If", "control flow"), (COUNTS, "cannot capture NonZero", "cannot change"),
     (PLAIN, "", "")],
)  # fmt: skip
def test_control_flow_and_changing_shapes_are_not_captured(
    text: str, what: str, why: str, provider: str, tmp_path: Path
) -> None:
    onnx.save(parsed(f"g {text}"), tmp_path / "m.onnx")
    runtime = Runtime(release=Release(1, 31), providers=frozenset({"cpu", *CAPTURING}), system="linux")
    for file in (tmp_path / "m.onnx", convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="basic")):
        facts = msgspec.structs.replace(facts_of(read_artifact(file), file.name), file=str(file))
        for value in ("1", "0"):
            use = RunOptions(provider=provider, provider_options={CAPTURING[provider]: value})
            reasons = [f"{row.what}: {row.why}" for row in check_artifact(facts, runtime, use)]
            assert len(reasons) == (bool(what) and value == "1"), reasons
            assert all(what in reason and why in reason for reason in reasons)
