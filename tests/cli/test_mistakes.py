"""Every mistake of the table gets an answer with its cause and a remedy, on stderr and with -q, and its exit code."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.mistakes import MISTAKES, Mistake
from tests.command import ort_mobile
from tests.onnx_samples import linear, save, save_external

HEAD = 'name = "a"\n[[models]]\npath = "my.onnx"\n'


@pytest.fixture
def folder(workplace: Path, tmp_path: Path) -> Path:
    """A copy of the work folder with a model of an open dimension, and what a careless user has lying about."""
    place = tmp_path / "work"
    shutil.copytree(workplace, place, copy_function=os.link)
    save(linear(8), place / "seq.onnx")
    save_external(linear(64), place / "external.onnx")
    (place / "weights.bin").unlink()
    (place / "empty").mkdir()
    (place / "foreign").mkdir()
    (place / "foreign/report.html").write_text("precious")
    for name in ("changed", "added"):
        shutil.copytree(place / "output/my/bundle", place / name)
    (place / "changed/manifest.json").read_bytes()
    artifact = next((place / "changed").rglob("*.ort"))
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"x")
    (place / "added/evil.bin").write_bytes(b"x")
    return place


@pytest.mark.usefixtures("no_adb")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.line.replace(" ", "_"))
def test_the_answer_names_cause_and_remedy(mistake: Mistake, folder: Path) -> None:
    for name, content in mistake.files.items():
        text = content if isinstance(content, bytes) else (HEAD * (name == "c.toml") + content).encode()
        (folder / name).write_bytes(text)
    done = ort_mobile(*shlex.split(mistake.line), "-q", cwd=folder, code=mistake.code)
    answer = done.err.lower()
    for words in (mistake.cause, mistake.remedy):
        assert all(word in answer for word in words), (words, answer)
    assert not any(word in answer for word in ("traceback", "internal error", *mistake.never)), answer
    assert (folder / "foreign/report.html").read_text() == "precious"
