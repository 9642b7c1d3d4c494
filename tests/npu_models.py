"""Every real model on six Snapdragons, beside sessions made without any of our code.

`python -m tests.npu_models TABLE.md [WORD…]` (`nox -s npu_models`) writes the table of models and generations; words
are parts of names. It ends with 1 where an answer differs from the session by hand.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from device_runner.providers import CHIPS
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.qnn.claims import PROVIDER

REAL, OPERATORS = Path("tests/ground_truth/real.zip"), Path("tests/ground_truth/ops.zip")
GENERATIONS = ("SM8350", "SM8450", "SM8550", "SM8635", "SM8650", "SM8750")
PROCESSES = 2
HAND_SECONDS = 600.0

BY_HAND = """
import json, os, sys
import onnxruntime as ort, onnxruntime_qnn as qnn
model, answer, soc_model = sys.argv[1:]
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
options = ort.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
(device, *_) = [row for row in ort.get_ep_devices() if row.ep_name == "QNNExecutionProvider"]
options.add_provider_for_devices([device], {"backend_path": qnn.get_qnn_htp_path(), "soc_model": soc_model})
try:
    parts = ort.InferenceSession(model, options, enable_fallback=0).get_provider_graph_assignment_info()
    known = [[part.ep_name, [node.name for node in part.get_nodes()]] for part in parts]
except Exception:
    known = None
open(answer, "w").write(json.dumps(known))
os._exit(0)
"""


def model_names(archive: Path) -> list[str]:
    """The ONNX files of an archive."""
    with zipfile.ZipFile(archive) as opened:
        return [name for name in opened.namelist() if name.endswith(".onnx")]


def asked_twice(archive: Path, name: str, chip: str, folder: Path) -> tuple[ModelAnswer, str]:
    """Our answer for a model, and how it differs from a session by hand; "" where it does not."""
    with zipfile.ZipFile(archive) as opened:
        path = Path(opened.extract(name, folder))
    row = answered(path, chip)
    return row, difference(row, by_hand(path, chip), chip)


def answered(path: Path, chip: str) -> ModelAnswer:
    """Our answer for a model on a chip."""
    return judge(PartitionRequest(source=SourceModel(path=str(path)), settings=Settings(provider="qnn", chip=chip)))


def by_hand(path: Path, chip: str) -> list[Any] | None:
    """The providers with their nodes of a session that none of our code makes; None where none is made."""
    target = path.with_suffix(".hand.json")
    command = [sys.executable, "-c", BY_HAND, str(path), str(target), str(CHIPS[chip].soc_model)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=HAND_SECONDS).returncode
    known: list[Any] | None = json.loads(target.read_bytes()) if ended == 0 else None
    return known


def difference(row: ModelAnswer, expected: list[Any] | None, chip: str) -> str:
    """How an answer differs from a session's providers with their nodes, None where there is no session."""
    if row.error or row.load is None:
        return "" if expected is None else f"no answer: {row.error}"
    if expected is None:
        return "" if row.load.error else "no session by hand"
    if row.load.code == "empty":
        return ""
    by_name = {name: provider == PROVIDER for provider, names in expected for name in names}
    names = Counter(decision.name for decision in row.decisions)
    differing = [
        decision.name
        for decision in row.decisions
        if names[decision.name] == 1 and by_name.get(decision.name, decision.claimed) != decision.claimed
    ]
    partitions = [provider for provider, _ in expected].count(PROVIDER)
    if differing or len(row.partitions) != partitions:
        return f"nodes {differing}, {len(row.partitions)} partitions instead of {partitions}"
    fails = row.load.code == "float" and not CHIPS[chip].floats
    return "" if bool(row.load.error) == fails else f"load: {row.load.error}"


def cell(row: ModelAnswer) -> str:
    """An answer as the table has it: partitions and nodes, or why no session is made."""
    if row.error or row.load is None:
        return f"no answer: {row.error}"
    if row.load.error:
        return f"fails ({row.load.code})"
    claimed = sum(decision.claimed for decision in row.decisions)
    return f"{len(row.partitions)} ({claimed}/{len(row.decisions)})"


def _answered(name: str, chip: str) -> tuple[str, str, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            row, differing = asked_twice(REAL, name, chip, Path(folder))
        except subprocess.TimeoutExpired:
            return name, chip, "hangs by hand", "a session by hand hangs"
    return name, chip, cell(row), differing


def main(target: str, *words: str) -> int:
    """Write the table; small models come first, so that what is stopped has most of it."""
    with zipfile.ZipFile(REAL) as opened:
        sizes = {info.filename: info.file_size for info in opened.infolist() if info.filename.endswith(".onnx")}
    chosen = [name for name in sorted(sizes, key=sizes.__getitem__) if not words or re.search("|".join(words), name)]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    cells: dict[str, dict[str, str]] = {}
    differing = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        futures = [pool.submit(_answered, name, chip) for name in chosen for chip in GENERATIONS]
        for future in futures:
            name, chip, text, wrong = future.result()
            cells.setdefault(name, {})[chip] = text
            differing += [f"{name} on {chip}: {wrong}"] if wrong else []
            Path(target).write_text(table(cells), encoding="utf-8")
    print("\n".join(differing) or f"{len(futures)} answers as by hand")
    return 1 if differing else 0


def table(cells: dict[str, dict[str, str]]) -> str:
    """Partitions with nodes taken of all, a row for a model and a column for a generation."""
    heads = [f"V{CHIPS[chip].htp_arch} ({chip})" for chip in GENERATIONS]
    lines = [f"| model | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in sorted(cells):
        row = " | ".join(cells[name].get(chip, "") for chip in GENERATIONS)
        lines.append(f"| {name.removesuffix('.onnx')} | {row} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
