"""`ort-mobile doctor`: what of ONNX Runtime's performance checklist helps a model on a device."""
