"""`ort-mobile import`: a model from where it was trained, as ONNX, compared with what its framework computes."""
