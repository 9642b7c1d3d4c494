"""Whole answers about a chip by content: a question that was asked before starts no process and loads no model."""

import os
from pathlib import Path

import msgspec

from device_runner.providers import CHIPS
from pipeline.core.files import ROOT, sha256_of
from pipeline.partition.answer import ModelAnswer, Settings
from pipeline.partition.qnn import claims


def entry_of(path: str, settings: Settings, question: bytes) -> Path | None:
    """Where the answer to a question about a model file is kept; None where none is: no file, or no chip.

    The digest covers the file (not files that it names: such answers are not kept), question, chip, releases, sources.
    """
    if not settings.chip or not Path(path).is_file():
        return None
    # Names, sizes and times of change of our sources: a tenth of the time that reading them takes
    rows, waiting = [], [str(ROOT / "pipeline"), str(ROOT / "device_runner")]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if entry.name.endswith(".py"):
                state = entry.stat()
                rows.append(f"{entry.path} {state.st_size} {state.st_ctime_ns}")
            elif entry.is_dir():
                waiting.append(entry.path)
    parts = (sha256_of(Path(path)), question.decode("utf-8", "replace"), "\n".join(sorted(rows)))
    return claims.entry_of(".answer.json", CHIPS[settings.chip], *parts)


def kept_answer(entry: Path | None, name: str) -> ModelAnswer | None:
    """The answer of an entry under a model's name; None where there is none that can be read."""
    answer = claims.kept(entry, ModelAnswer) if entry else None
    return msgspec.structs.replace(answer, path=name) if answer else None


def keep_answer(entry: Path | None, answer: ModelAnswer) -> None:
    """Keep an answer; not one that a busy machine gave."""
    if entry and not answer.error and not (answer.load and answer.load.code == "hang"):
        claims.keep(entry, answer)
