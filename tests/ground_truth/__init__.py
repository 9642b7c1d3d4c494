"""What real builds of ONNX Runtime claimed and saved, as README.md here describes."""

from pathlib import Path

ORACLE = Path(__file__).resolve().parent
"""The folder of models and labels."""
