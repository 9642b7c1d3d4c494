"""Custom operators: a library of our own in C, and ONNX Runtime Extensions."""
