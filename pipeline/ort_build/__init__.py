"""Custom builds of ONNX Runtime: from a target and its operators to the exact commands, and to the library."""
