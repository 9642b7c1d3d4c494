"""`ort-mobile diff`: what changed between two model files, node by node, and which optimizer of ONNX Runtime did it."""
