"""onnxruntime's errors become causes and remedies, in one printable line."""

import pytest

from device_runner.failures import CHECKER
from pipeline.convert.steps import explain

PREFIX = "[ONNXRuntimeError] : 1 : FAIL : "
CASES = {
    "Load model from m.onnx failed:/onnxruntime_src/onnxruntime/core/graph/model.cc:180 onnxruntime::Model::Model() "
    "Unsupported model IR version: 14, max supported IR version: 13": "IR version 14 is newer",
    "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset 99 is "
    "under development": "opset is newer",
    "No Op registered for Gelu with domain_version of 13": "operator Gelu does not exist in opset 13",
    "Fatal error: com.acme:Magic(-1) is not a registered function/op": "operator Magic of domain com.acme is unknown",
    "Could not find an implementation for Relu(1) node with name 'r'": "no kernel",
    "We do not support type [9] for now": "optional type",
    "Failed to save ORT format model to file: m.ort": "could not be written",
    "std::bad_alloc": "more memory than there is",
    "Node () Op (Add) [ShapeInferenceError] Incompatible dimensions": "shapes in its graph",
    "Type Error: Type 'tensor(int64)' of input parameter (x)": "types in its graph",
    "This is an invalid model. Error: Duplicate definition of name (y).": "breaks ONNX's rules",
    "something never seen before": "onnxruntime refuses the model",
}


@pytest.mark.parametrize(("message", "said"), CASES.items())
def test_known_messages_have_a_cause(message: str, said: str) -> None:
    error = explain(RuntimeError(PREFIX + message), "m.onnx")
    assert said in error.what
    assert error.where == "m.onnx"
    assert error.remedy
    assert not error.why.startswith("[ONNXRuntimeError]")
    assert "/onnxruntime_src" not in error.why


def test_messages_are_made_printable_and_short() -> None:
    error = explain(ValueError("\x1b[31mred\x00\n" + "x" * 5000), "m.onnx")
    assert error.why.isprintable()
    assert len(error.why) <= 400
    assert error.remedy == CHECKER
