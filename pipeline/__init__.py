"""The host side of ort-mobile: from an ONNX model to a release that was tested as it ships."""

__version__ = "0.1.0"
