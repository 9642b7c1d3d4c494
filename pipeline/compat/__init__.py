"""What a release and build of ONNX Runtime can load and has, and sound files that it fails on."""
