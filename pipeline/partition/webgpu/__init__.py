"""What ONNX Runtime's WebGPU provider takes of a model: each node for which its table of kernels has a row."""
