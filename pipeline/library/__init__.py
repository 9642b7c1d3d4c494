"""Libraries of ONNX Runtime by name: found in build tools' caches or fetched, and what is in them."""
