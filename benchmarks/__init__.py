"""Side-by-side measurements with what users have today. No test times anything: these do."""

import os

import device_runner  # noqa: F401 - switches the telemetry of ONNX Runtime off, in what is compared with as well

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands of users keep their bytecode
