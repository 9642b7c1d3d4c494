"""The commented config that `ort-mobile init` writes, and the config of a run that has none."""

import os
import tempfile
from pathlib import Path

import msgspec

from pipeline.config import Config, ModelConfig, with_defaults
from pipeline.files import safe_name
from pipeline.model_sources import SourceModel
from pipeline.onnx_model import PreparedModel, load_model, prepare_model

TEMPLATE = """\
# How to convert, check, measure and ship {model}.
# Every key: docs/reference/config.md. Paths are relative to this file.
name = {name}
# Where to run: this computer, and phones by their serials ("adb:SERIAL", or "adb:*" for every ready one).
devices = ["local"]
# Compare accelerators with the CPU in every sensible way: nnapi, coreml-nn, coreml-mlprogram, xnnpack.
# compare = ["nnapi"]

[[models]]
path = {path}
# A folder with test_data_set_0/input_0.pb … in it (ONNX's own layout); random inputs without it.
{test_data}
# A labelled evaluation set: an .npz file with `inputs` and `labels`.
# labels = "evaluation.npz"
{dimensions}

[[targets]]
name = "android-arm64"
platform = "android"            # android, ios, linux, macos
abis = ["arm64-v8a"]
min_api_level = 27              # NNAPI needs 27
# ort_release = "{release}"         # the ONNX Runtime release in your app; the installed one by default
# library = "onnxruntime-android.aar"   # the library that ships (or android:RELEASE); proven on x86-64 Linux

[variants]
levels = ["none", "basic", "extended", "all"]
styles = ["fixed", "runtime"]
# aware = ["nnapi"]             # provider-aware variants: nnapi, coreml-nn, coreml-mlprogram, or joined by +

# How to run. Without any [[runs]]: NNAPI on basic, and CPU on everything, as ONNX Runtime's documentation advises.
# [[runs]]
# provider = "nnapi"
# variants = ["basic-*"]
# flags = ["USE_FP16"]

# A list is tried in every combination that can work; the others are reported with the reason.
# [[runs]]
# provider = "cpu"
# threads = [1, 2, 4]
# spinning = [true, false]

[measure]
rounds = 5                      # every variant runs once in each, in a fresh process
min_runs = 20
min_seconds = 0.2
margin_percent = 5              # closer than this is the same
# profile = true                # after the rounds: times by operator, and a trace of each for Perfetto
"""


def config_text(model: Path, folder: Path) -> str:
    """A config for a model, to stand in `folder`; raises ModelError when the model cannot be used."""
    import onnxruntime

    prepared = inspect_model(model)
    path = os.path.relpath(model, folder)
    data = model.parent / "test_data_set_0"
    return TEMPLATE.format(
        model=quoted(model.name).strip('"'),
        name=quoted(campaign_name(model)),
        path=quoted(path),
        test_data=f"test_data = {quoted(os.path.relpath(model.parent, folder))}"
        if data.is_dir()
        else '# test_data = "."',
        dimensions=_dimensions_text(prepared),
        release=".".join(onnxruntime.__version__.split(".")[:2]),
    )


def config_for_model(model: Path) -> Config:
    """The config of `ort-mobile run --model`: everything by default, test data from beside the model."""
    has_data = (model.parent / "test_data_set_0").is_dir()
    table = ModelConfig(path=str(model), test_data=str(model.parent) if has_data else None)
    return with_defaults(msgspec.convert({"name": campaign_name(model), "models": [table]}, Config))


def inspect_model(model: Path) -> PreparedModel:
    """The model with what is still open in it."""
    with tempfile.TemporaryDirectory() as work:
        return prepare_model(load_model(SourceModel(path=str(model)), Path(work)), {})


def campaign_name(model: Path) -> str:
    """A campaign's name from a model's file name, in the letters that a name may have."""
    return safe_name(model.stem)[:64].lstrip("._-") or "model"


def _dimensions_text(model: PreparedModel) -> str:
    if not model.dynamic:
        return "# All dimensions of the inputs are fixed."
    names = dict.fromkeys(label.partition(" ")[2] or label for label in model.dynamic)
    pairs = ", ".join(f"{quoted(name)} = 1" for name in names)
    return (
        "# Open dimensions of the inputs: NNAPI takes nothing whose shape is open, so fix them to what the app uses.\n"
        f"dimensions = {{ {pairs} }}"
    )


def quoted(text: str) -> str:
    """A TOML basic string."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
