"""docs/guides.toml: each row has a command that works with a test that exists, or the reason why there is none."""

import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.advice.test_advise import open_mnist
from tests.cli.test_docs_commands import COMMANDS, elsewhere
from tests.cli.test_guide_rows import with_initializers_as_inputs
from tests.cli.test_help import parse
from tests.command import ROOT, ort_mobile
from tests.custom_ops.samples import library
from tests.custom_ops.samples import model as twice
from tests.features.perf.test_stream import lstm
from tests.ort_models import convert, parsed
from tests.passes.real_models import extract

ROWS: list[dict[str, str]] = tomllib.loads((ROOT / "docs/guides.toml").read_text("utf-8"))["rows"]
REASONS = ("not for phones, because ", "not yet: ")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["told"][:40])
def test_a_row_has_a_command_with_its_test_or_a_reason(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "why" in row:
        assert set(row) == {"guide", "told", "why"}
        assert row["why"].startswith(REASONS)
        return
    assert set(row) == {"guide", "told", "command", "test", "part"}
    monkeypatch.chdir(tmp_path)
    Path("PROGRAM").touch()  # a program of the user's, which its option looks for
    program, *words = shlex.split(row["command"])
    assert program == "ort-mobile"
    parse(words)
    path, _, function = row["test"].partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), row["test"]


def test_nothing_is_told_twice() -> None:
    told = [(row["guide"], row["told"]) for row in ROWS]
    assert len(set(told)) == len(told)


def _batches(folder: Path) -> None:
    convert(open_mnist(folder), folder / "a.ort", level="all")


def _outputs(folder: Path) -> None:
    text = "g (float[1, 4] x) => (float[1, 4] logits, float[1, 4] y) { logits = Tanh (x)  y = Relu (logits) }"
    onnx.save(parsed(text), folder / "my.onnx")


def _stream(folder: Path) -> None:
    model = lstm()
    for nodes in (model.graph.input, model.graph.output):
        for value in nodes:
            value.name = NAMES.get(value.name, value.name)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [NAMES.get(name, name) for name in names]
    onnx.save(model, folder / "my.onnx")
    convert(folder / "my.onnx", folder / "a.ort", level="all")


def _custom(folder: Path) -> None:
    twice(folder / "my.onnx")
    shutil.copy(library(), folder / "PROGRAM")
    words = ("my.onnx", "--output", ".", "--level", "all", "--style", "fixed", "--custom-ops", "PROGRAM")
    ort_mobile("convert", *words, cwd=folder, process=True)
    shutil.copy(folder / "my.all-fixed.ort", folder / "my.ort")


def _trained(folder: Path) -> None:
    pytest.importorskip("sklearn")
    trained = (ROOT / "tests/features/imports/trained.py").read_text("utf-8")
    (folder / "train.py").write_text(f"{trained}\n\nmodel = torch_convolutions\n", "utf-8")


def _transformer(folder: Path) -> None:
    shutil.copy(extract("distilbert.base", folder), folder / "my.onnx")


def _inputs(folder: Path) -> None:
    shutil.copy(ROOT / "build_configs/examples/mnist/mnist.onnx", folder / "my.onnx")
    with_initializers_as_inputs(folder / "my.onnx")


NAMES = {"h0": "state", "h1": "stateN"}
MODELS: dict[str, Callable[[Path], None]] = {
    "--batch": _batches, "prune-outputs": _outputs, "--stream": _stream, "--custom-ops": _custom, "train:": _trained,
    "transformer-fusions": _transformer, "constant-initializers": _inputs,
}  # fmt: skip
"""By a word of the command, who makes its files where it is for other models than MNIST."""

SHORTER = {"--minutes 20": "--minutes 0.15", "doctor my.onnx": "doctor my.onnx --minutes 0.02", "cores big": "cores 1"}
FEWER = {"rounds = 5": "rounds = 1", "min_runs = 20": "min_runs = 3", "min_seconds = 0.2": "min_seconds = 0.01"}
"""What commands and the config of `init` measure, and what is enough here: whether it works, not how fast it is."""

NOT_HERE = {
    "--reference installed": (1, "the installed onnxruntime has no NnapiExecutionProvider"),
    "perf a.ort --provider nnapi": (1, "NNAPI needs a phone"),
    "--provider webgpu": (1, "onnxruntime-ep-webgpu|no Vulkan driver that computes on the CPU"),
    "--provider cuda": (1, "with the libonnxruntime of onnxruntime-gpu"),
    "train:model": (3, "torch"),
    "my.tflite": (3, "tensorflow"),
    "--perf-test": (2, "PROGRAM"),
}
"""What only other machines have, with the exit code and the answer of this one."""


@pytest.fixture(scope="module")
def mnist_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has who did the guide's first steps with MNIST."""
    folder, example = tmp_path_factory.mktemp("guides"), ROOT / "build_configs/examples/mnist"
    shutil.copy(example / "mnist.onnx", folder / "my.onnx")
    for number in range(3):
        shutil.copytree(example / f"test_data_set_{number}", folder / f"samples/test_data_set_{number}")
    shutil.copytree(ROOT / "build_configs", folder / "build_configs")
    (folder / "my.tflite").write_bytes(b"a model")
    ort_mobile("init", "my.onnx", cwd=folder)
    ort_mobile("convert", "my.onnx", "--output", "out", cwd=folder)
    for name, variant in (("a", "all"), ("b", "basic"), ("my", "all")):
        shutil.copy(folder / f"out/my.{variant}-fixed.ort", folder / f"{name}.ort")
    config = (folder / "my.toml").read_text("utf-8")
    for text, fewer in FEWER.items():
        assert text in config
        config = config.replace(text, fewer)
    (folder / "my.toml").write_text(config, "utf-8")
    ort_mobile("run", "my.toml", "--convert-only", "--output", "output/my", cwd=folder)
    ort_mobile("transform", "my.onnx", "int8.onnx", "--do", "static-qdq", "--test-data", "samples", cwd=folder)
    convert(folder / "int8.onnx", folder / "int8.ort", level="extended")
    return folder


OURS = [row["command"] for row in ROWS if "command" in row]


@pytest.mark.slow
@pytest.mark.parametrize("command", [row for row in dict.fromkeys(OURS) if row not in COMMANDS or elsewhere(row)])
def test_a_command_does_its_work_on_a_real_model(command: str, mnist_folder: Path, tmp_path: Path) -> None:
    folder = mnist_folder
    for word, make in MODELS.items():
        if word in command:
            make(folder := tmp_path)
    for word, shorter in SHORTER.items():
        command = command.replace(word, shorter)
    if command.startswith("ort-mobile perf "):
        command += " --min-seconds 0.01 --min-runs 3" + " --rounds 1" * ("--rounds" not in command)
    code, text = next((answer for word, answer in NOT_HERE.items() if word in command), (0, ""))
    done = ort_mobile(*shlex.split(command)[1:], cwd=folder, code=code)
    assert re.search(text, done.text)
