"""ONNX models without their weights, and ORT format files: found, read, checked, prepared, written."""
