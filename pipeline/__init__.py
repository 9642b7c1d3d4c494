"""The host side of ort-mobile: from an ONNX model to a release that was tested as it ships."""

import device_runner  # noqa: F401 - switches the telemetry of ONNX Runtime off before anything here loads it

__version__ = "1.0.0"
