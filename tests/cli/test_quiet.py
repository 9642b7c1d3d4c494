"""With -q, before a command or behind it, stdout is silent and stderr says why the exit code is not 0."""

import logging
import shlex
from pathlib import Path

import pytest

from tests.command import leaves, ort_mobile

FAILING = {
    "convert": ("convert broken.onnx my.onnx --output o --level all --style fixed", 1, "broken.onnx"),
    "convert, precision": ("convert my.onnx --precision u8s8pc --output o --level all --style fixed", 3, "calibration"),
    "check": ("check broken.onnx my.onnx", 1, "broken.onnx"),
    "partition": ("partition broken.onnx my.onnx --ep nnapi", 1, "broken.onnx"),
    "accuracy": ("accuracy my.onnx --reference my.onnx --test-data sample.npz --max-drop 0", 4, "drops by"),
    "perf": ("perf broken.onnx my.onnx --rounds 1 --min-runs 1 --min-seconds 0.001", 1, "broken.onnx"),
    "gate": ("gate my.onnx my.onnx --base-library wheel:0.0.1 --rounds 8 --min-runs 1 --min-seconds 0.001", 3, "0.0.1"),
    "compare": ("compare output/my output/my", 1, "nothing of"),
    "devices": ("devices nobody", 3, "no"),
}
"""What fails without an error of the whole command: its exit code, and words that stderr must have."""


@pytest.mark.usefixtures("no_adb")
@pytest.mark.parametrize(("line", "code", "words"), FAILING.values(), ids=FAILING)
def test_an_exit_code_has_its_reason(line: str, code: int, words: str, workplace: Path, tmp_path: Path) -> None:
    for path in workplace.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    done = ort_mobile("-q", *shlex.split(line), cwd=tmp_path, code=code)
    assert done.out == ""
    assert words in done.err
    as_json = ort_mobile(*shlex.split(line), "--json", "-", cwd=tmp_path, code=code)
    assert words in as_json.err


def test_options_of_all_commands_stand_before_and_behind_each() -> None:
    for name, command in leaves():
        options = [option for param in command.params for option in param.opts]
        assert {"-q", "--quiet", "-v", "--verbose", "--debug"} <= set(options), name
        assert len(options) == len(set(options)), f"{name} has an option twice"


@pytest.mark.parametrize(
    ("line", "level"),
    [("-v help", "INFO"), ("help -v", "INFO"), ("-v help -v", "DEBUG"), ("help check -q", "ERROR"),
     ("build size --cache empty --debug", "DEBUG")],
)  # fmt: skip
def test_the_log_follows_wherever_an_option_stands(
    line: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []
    monkeypatch.setattr(logging.getLogger(), "setLevel", levels.append)
    ort_mobile(*line.split(), cwd=tmp_path)
    assert logging.getLevelName(levels[-2]) == level  # the last puts back what was
