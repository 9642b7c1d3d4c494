"""A folder as the guide's reader has it after the first commands."""

from pathlib import Path

import numpy as np
import pytest

from tests.command import ort_mobile
from tests.onnx_samples import conv_bn, save


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`my.onnx`, a sample, its config, `out/` of a conversion and `output/my/` of a job; tests must not change them."""
    folder = tmp_path_factory.mktemp("workplace")
    save(conv_bn(8), folder / "my.onnx")
    np.savez(folder / "sample.npz", x=np.zeros((1, 3, 8, 8), np.float32))
    for line in (
        "convert my.onnx --output out --level basic,all --style fixed",
        "init my.onnx",
        "run my.toml --convert-only",
    ):
        ort_mobile(*line.split(), cwd=folder)
    return folder
