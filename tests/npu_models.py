"""Models on a Snapdragon beside sessions made without any of our code."""

import json
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from device_runner.providers import CHIPS
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.providers.qnn.claims import PROVIDER

REAL, OPERATORS = Path("tests/ground_truth/real.zip"), Path("tests/ground_truth/ops.zip")
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
