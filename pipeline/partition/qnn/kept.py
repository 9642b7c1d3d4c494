"""Whole answers about a chip by content: a question that was asked before starts no process and loads no model."""

import hashlib
import os
from importlib import metadata
from pathlib import Path

import msgspec

from device_runner.chips import CHIPS
from device_runner.errors import RunnerError
from device_runner.files import cache_folder
from device_runner.reading import decode_json, read_regular
from pipeline.core.errors import PipelineError
from pipeline.core.files import ROOT, sha256_of, write_bytes
from pipeline.partition.answer import ModelAnswer, Settings
from pipeline.partition.qnn.claims import compiler_name, log


def entry_of(path: str, settings: Settings, question: bytes) -> Path | None:
    """Where the answer to a question about a model file is kept; None where none is: no file, or no chip.

    The digest covers the file (not files that it names: such answers are not kept), question, chip, releases, sources.
    """
    if not settings.chip or not Path(path).is_file():
        return None
    parts = (sha256_of(Path(path)).encode(), question, repr(CHIPS[settings.chip]).encode(), compiler_name().encode(),
             metadata.version("onnxruntime").encode(), _sources())  # fmt: skip
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return cache_folder() / "npu" / f"{digest}.answer.json"


def _sources() -> bytes:
    """Names, sizes and times of change of our sources: a tenth of the time that reading them takes."""
    rows, waiting = [], [str(ROOT / "pipeline"), str(ROOT / "device_runner")]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if entry.name.endswith(".py"):
                state = entry.stat()
                rows.append(f"{entry.path} {state.st_size} {state.st_ctime_ns}")
            elif entry.is_dir():
                waiting.append(entry.path)
    return "\n".join(sorted(rows)).encode()


def kept_answer(entry: Path | None, name: str) -> ModelAnswer | None:
    """The answer of an entry under a model's name; None where there is none that can be read."""
    if entry is None:
        return None
    try:
        return msgspec.structs.replace(decode_json(read_regular(entry), ModelAnswer), path=name)
    except (OSError, RunnerError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def keep_answer(entry: Path | None, answer: ModelAnswer) -> None:
    """Keep an answer; not one that a busy machine gave."""
    if entry is None or answer.error or (answer.load and answer.load.code == "hang"):
        return
    try:
        write_bytes(entry, msgspec.json.encode(answer))
    except PipelineError as error:  # the answer is there all the same
        log.warning("the answer is not kept: %s", error)
