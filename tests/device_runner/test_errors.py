"""The command that a remedy names installs into the environment that lacks the package, whatever the shell's is."""

import sys
from pathlib import Path

import pytest

from device_runner.errors import pip_install


@pytest.mark.parametrize(
    ("pip_on_path", "has_pip", "command"),
    [
        (Path(sys.executable).with_name("pip"), True, "pip install"),
        (Path("elsewhere/pip"), True, f"{sys.executable} -m pip install"),
        (None, False, f"uv pip install --python {sys.executable}"),
    ],
)
def test_the_environment_of_this_program_is_named(
    pip_on_path: Path | None, has_pip: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_runner.errors.shutil.which", lambda _: pip_on_path)
    monkeypatch.setattr("device_runner.errors.find_spec", lambda _: has_pip or None)
    assert pip_install("ziglang", "jiwer>=3") == f"{command} ziglang 'jiwer>=3'"
