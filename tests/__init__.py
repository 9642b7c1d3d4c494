"""Tests; importing this switches the telemetry of ONNX Runtime off for all of them."""

import device_runner  # noqa: F401 - see there
