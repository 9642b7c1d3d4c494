"""The device `linux-host` with a library of this computer's own processor, where nothing is emulated."""

import importlib
import inspect
import tempfile
from pathlib import Path

import pytest

from device_runner import local
from device_runner.device import OPENERS, no_waiting, open_device
from device_runner.local import wheel_library
from device_runner.spec import Allocator, RunOptions, RunSpec
from tests.probe_models import save_models


def test_the_folder_of_a_killed_process_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ort-mobile-linux-left0123").mkdir()
    with open_device(f"linux-host:{wheel_library()}") as device:
        assert device.facts().platform == "linux"
        assert len(list(tmp_path.iterdir())) == 1
        assert not (tmp_path / "ort-mobile-linux-left0123").exists()
    assert list(tmp_path.iterdir()) == []


def test_an_allocator_is_for_its_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_allocator", lambda _: "")
    spec = RunSpec(
        id="m", model=str(save_models(tmp_path) / "null.onnx"), options=RunOptions(allocator=Allocator.JEMALLOC)
    )
    with open_device(f"linux-host:{wheel_library()}") as device:
        result = device.run(spec)
    assert result.failure
    assert (result.failure.message, result.failure.remedy) == (
        "jemalloc is not installed", "apt-get install libjemalloc2"
    )  # fmt: skip


@pytest.mark.parametrize("text", OPENERS.values())
def test_every_kind_of_device_can_be_opened_with_a_way_to_wait(text: str) -> None:
    module, _, function = text.partition(":")
    inspect.signature(getattr(importlib.import_module(module), function)).bind("rest", no_waiting)
