"""Every command of README and docs runs as it stands, or is in a table with the reason why not here."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.cli.main import COMMANDS as NAMES
from tests.cli.commands import ort_mobile
from tests.cli.test_help import parse
from tests.onnx_samples import conv_bn, linear, make, save, value
from tests.passes.quantized_models import write_digits

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "build_configs/builds/README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "facts"),
)

ELSEWHERE = {
    r"nox -s pipeline$|nox -s tests$": "installs and runs for minutes: .ci/run does it in a fresh clone",
    r"nox -s": "a session that calls a command below; tests/test_project.py holds sessions and commands together",
    r"adb:|devices SERIAL": "needs a phone: tests/device runs these options against a real adbd",
    r"app\.aar|onnxruntime-(android|release)\.aar|-host:|--(library|reference) (android|wheel):":
        "needs an Android library: tests/android_host",
    r"library get|library show": "needs the network or a package: tests/library",
    r"#previous|--run-a": "compares campaigns that measured: tests/job/test_sides.py",
    r"ort-mobile doctor my": "measures for minutes: tests/job/test_doctor.py",
    r"ort-mobile gate base/bundle": "measures two versions in turn: tests/job/test_regression.py",
    r"ort-mobile tune ": "searches for minutes: tests/job/test_tune.py",
    r"build doctor|build run": "needs a source tree of ONNX Runtime and its tools: tests/ort_build",
    r"^apt-get install": "changes the computer: nox -s android_host_tests installs the same packages",
    r"completion fish >": "redirects into the user's own folder",
}  # fmt: skip
"""Commands that are not run here, by pattern, and where they are, or why not."""

CODES = {r"--max-drop 0\.01": 4, r"new-model\.ort": 4, r"--from-log": 4, r"compare output/my/bundle": 1}
"""Exit codes other than 0, by pattern: what the text around these commands says; nothing was measured to compare."""


def blocks(page: Path) -> Iterator[str]:
    yield from re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def command_lines() -> Iterator[str]:
    """Commands without comments and with continued lines joined."""
    for page in PAGES:
        for block in blocks(page):
            for line in block.replace("\\\n", " ").splitlines():
                if command := re.sub(r"(^|\s)#.*", "", line).strip():
                    yield command


COMMANDS = list(dict.fromkeys(command_lines()))
MEASURING = re.compile(r"ort-mobile run (?!.*--convert-only)|.* --precision ")


def elsewhere(command: str) -> str:
    return next((reason for pattern, reason in ELSEWHERE.items() if re.search(pattern, command)), "")


def open_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a dynamic batch, as most exporters write it."""
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def speech() -> onnx.ModelProto:
    """A model with the inputs that the guide's example of values names: tokens and a sample rate."""
    nodes = [helper.make_node("Add", ["tokens", "sr"], ["y"])]
    takes = [value("tokens", [1, "sequence"], TensorProto.INT64), value("sr", [], TensorProto.INT64)]
    return make(nodes, takes, [value("y", [1, "sequence"], TensorProto.INT64)], [])


@pytest.fixture(scope="session")
def documented(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the docs name, in a folder."""
    folder = tmp_path_factory.mktemp("documented") / "clone"
    shutil.copytree(workplace, folder)
    (folder / "my.onnx").unlink()
    save(open_batch(conv_bn(8)), folder / "my.onnx")
    save(linear(8), folder / "new.onnx")
    artifact = folder / "out/my.basic-fixed.ort"
    shutil.copy(ROOT / "build_configs/examples/mnist/mnist.onnx", folder / "int8.onnx")
    for name in ("a.ort", "b.ort", "my.ort"):
        shutil.copy(artifact, folder / name)
    assert ort_mobile("convert", "new.onnx", "--output", "new", "--level", "basic", cwd=folder).code == 0
    shutil.copy(folder / "new/new.basic-fixed.ort", folder / "new-model.ort")
    for name in ("required_operators", "a", "b", "old", "new", "missing"):
        shutil.copy(folder / "out/required_operators_and_types.config", folder / f"{name}.config")
    for name in ("logcat.txt", "device.log"):
        (folder / name).write_text("Failed to find kernel for Tan(7) (node:'t' ep:'CPUExecutionProvider').\n")
    shutil.copytree(ROOT / "build_configs", folder / "build_configs")
    write_digits(folder / "digits")
    return folder


def expanded(command: str, folder: Path) -> list[str]:
    """The words of a command as a shell gives them: quotes removed, patterns of files filled in."""
    words = []
    for word in shlex.split(command):
        found = (
            [str(path.relative_to(folder)) for path in folder.glob(word)] if "*" in word and "'" not in command else []
        )
        words += sorted(found) or [word]
    return words


def test_there_are_commands_and_every_reason_is_needed() -> None:
    assert len(COMMANDS) > 50
    for pattern in ELSEWHERE:
        assert pattern == r"completion fish >" or any(re.search(pattern, command) for command in COMMANDS), pattern


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_blocks_of_their_own_kind(page: Path) -> None:
    """A command in a block of another kind would be run by nobody."""
    text = re.sub(
        r"^```(sh|console|text)\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert not re.findall(rf"^(?: {{4}})?ort-mobile (?:{'|'.join(NAMES)})\b.*", text, re.MULTILINE)


@pytest.mark.usefixtures("no_adb")
@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=[pytest.mark.long] * bool(MEASURING.match(command))) for command in COMMANDS],
)
def test_the_command_runs(command: str, documented: Path, tmp_path: Path) -> None:
    words = expanded(command, documented)
    if words[0] == "ort-mobile":
        parse([word for word in words[1:] if word not in (">", "|")])
    if elsewhere(command):
        return
    assert words[0] == "ort-mobile", "a program that no reason is given for"
    folder = tmp_path / "clone"
    shutil.copytree(documented, folder, copy_function=os.link)
    expected = next((code for pattern, code in CODES.items() if re.search(pattern, command)), 0)
    if command.startswith(("ort-mobile init", "ort-mobile run my.toml")):
        (folder / "my.toml").unlink()
        assert ort_mobile("init", "my.onnx", cwd=folder).code == 0
        if "init" in command:
            (folder / "my.toml").unlink()
    if "sequence=" in command:
        (folder / "my.onnx").unlink()
        save(speech(), folder / "my.onnx")
    done = ort_mobile(*words[1:], cwd=folder)
    assert done.code == expected, done.err
