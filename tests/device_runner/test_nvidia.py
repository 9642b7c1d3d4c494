"""Options of CUDA and TensorRT beside the genuine libraries of onnxruntime-gpu, which need a GPU to open."""

import zipfile
from pathlib import Path

import pytest

from device_runner.local import open_local
from device_runner.providers import PROVIDERS
from device_runner.result import FailureKind
from device_runner.spec import RunOptions, RunSpec
from tests.probe_models import save_models
from tests.python_packages import download

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    wheel = download("onnxruntime-gpu==1.31.1", folder, platform="manylinux_2_28_x86_64")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/libonnxruntime" in name])
    return folder / "onnxruntime" / "capi"


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_every_option_is_one_of_the_library(provider: str, libraries: Path) -> None:
    row = PROVIDERS[provider]
    content = (libraries / f"libonnxruntime_providers_{provider}.so").read_bytes()
    words = [*row.values, *(row.values[name] for name in row.values if name.endswith(("strategy", "search")))]
    for word in (word for text in words for word in text.split("|")):
        assert f"\0{word}\0".encode() in content, word


def test_its_session_asks_what_androids_asks_before_a_capture(libraries: Path) -> None:
    """In Android's library WebGPU shows what they mean (tests/android_host/test_guide_rows.py)."""
    content = next(libraries.glob("libonnxruntime.so.*")).read_bytes()
    for condition in (b"control flow nodes which can't be supported by", b"nodes have not been partitioned to the "):
        assert condition in content


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_computer_without_its_libraries_is_told_which(provider: str, libraries: Path, tmp_path: Path) -> None:
    options = RunOptions(provider=provider, provider_options={"device_id": "0"})
    library = str(next(libraries.glob("libonnxruntime.so.*")))
    with open_local("") as device:
        assert provider in device.library_for(library).facts.providers
        model = save_models(tmp_path) / "null.onnx"
        result = device.run(RunSpec(id="m", model=str(model), library=library, options=options))
    assert result.failure
    assert result.failure.code is FailureKind.MISSING_LIBRARY
    assert f"libonnxruntime_providers_{provider}.so with error: libcu" in result.failure.what
