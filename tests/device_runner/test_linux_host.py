"""The device `linux-host` with a library of this computer's own processor, where nothing is emulated."""

import tempfile
from pathlib import Path

import pytest

from device_runner.device import open_device
from device_runner.local import wheel_library


def test_the_folder_of_a_killed_process_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ort-mobile-linux-left").mkdir()
    with open_device(f"linux-host:{wheel_library()}") as device:
        assert device.facts().platform == "linux"
        assert len(list(tmp_path.iterdir())) == 1
        assert not (tmp_path / "ort-mobile-linux-left").exists()
    assert list(tmp_path.iterdir()) == []
