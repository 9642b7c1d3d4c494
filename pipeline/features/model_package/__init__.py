"""A bundle as a model package of ONNX Runtime 1.32, which opens the variant of a session's provider by itself."""
