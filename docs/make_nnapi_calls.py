"""Write docs/reference/nnapi-calls.md from what the Android library does: `python docs/make_nnapi_calls.py`."""

from pathlib import Path

from device_runner.android_host.calls import observe, table
from device_runner.library import resolve

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "nnapi-calls.md"
MODEL = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"
RELEASE = "1.29.0"


def make_page() -> str:
    """The page for the newest release that a registry package carries."""
    return table(list(observe(resolve(RELEASE).android(), MODEL)), release=RELEASE, model="the MNIST example")


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(make_page(), "utf-8")
