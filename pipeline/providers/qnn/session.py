"""Sessions of the QNN provider, in a process of their own: `python -m … TASK ARGUMENT… KEY=VALUE…`.

A process for each question, because the compiler crashes on some models and keeps state between sessions: one with a
wrong chip computes otherwise after one with a right chip than alone. Custom operators are all that is imported of this
project.
"""

import ctypes
import json
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime

PROVIDER = "QNNExecutionProvider"
INVALID = re.compile(r"backendValidateOpConfig\(\) failed for node [`'](.+?)[`'] of type [`'](\w+)[`'] with error code")
"""What the backend logs of an operator that it does not have for such types and shapes."""

FAILED = re.compile(r"Validation FAILED .*\n((?:\s+Operator type: .*\n)+)\s+REASON : (.*)")
NAMED = re.compile("Node name: (.+) Node index")
"""What the provider logs, at its most verbose, of nodes that it refuses."""

PR_SET_PDEATHSIG = 1


def main(task: str, *arguments: str) -> None:
    """Do one of `TASKS`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # who asked may be killed
    TASKS[task](*arguments)


def claims(model: str, answer: str, inputs: str, *pairs: str) -> None:
    """Write as JSON what the provider takes of a model.

    `subgraphs` are providers with their nodes (name, domain, operator), `refusals` the provider's reasons and `invalid`
    the backend's operators by names of nodes; or `error` is why no session is made. With `inputs`, an .npz of arrays in
    the order of the model's inputs, sample by sample, the chip's simulator runs it, and its outputs are beside the
    answer as .npz.
    """
    with tempfile.TemporaryDirectory(dir=Path(answer).parent) as folder:
        log, trace = Path(folder) / "log", Path(folder) / "qnn_op_trace.json"
        _write_output_to(log)
        try:
            options = {"enable_framework_op_trace": "1", "framework_op_trace_dir": folder, **_by_key(pairs)}
            # The provider is shown the graph as it stands; it changes layouts and fuses all the same.
            recorded = {"session.record_ep_graph_assignment_info": "1"}
            session_of = partial(_session, model, options, level="ORT_DISABLE_ALL", entries=recorded)
            session = session_of(severity=2)  # the backend's validation errors are warnings
            subgraphs = [
                [part.ep_name, [[node.name, node.domain, node.op_type] for node in part.get_nodes()]]
                for part in session.get_provider_graph_assignment_info()
            ]
            if trace.is_file():
                rows = json.loads(trace.read_text(encoding="utf-8"))["unsupported_nodes"]
                refusals = {row["node_name"]: row["reason"] for row in rows}
            else:  # the trace is not written where all that it would take are single Q or DQ nodes
                session_of(severity=0)
                failed = FAILED.findall(log.read_text(encoding="utf-8", errors="replace"))
                refusals = {name: reason for nodes, reason in failed for name in NAMED.findall(nodes)}
            document: dict[str, Any] = {"subgraphs": subgraphs, "refusals": refusals}
            if inputs:
                import numpy as np

                session.disable_fallback()
                with np.load(inputs, allow_pickle=False) as arrays:
                    names = [value.name for value in session.get_inputs()]
                    results = []
                    for start in range(0, len(arrays.files), len(names)):
                        feeds = {name: arrays[f"arr_{start + index}"] for index, name in enumerate(names)}
                        results += session.run(None, feeds)
                np.savez(Path(answer).with_suffix(".npz"), *results)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            document = {"error": str(error)}
        document["invalid"] = dict(INVALID.findall(log.read_text(encoding="utf-8", errors="replace")))
    Path(answer).write_text(json.dumps(document), encoding="utf-8")


def contexts(models: str, folder: str, name: str, answer: str, *pairs: str) -> None:
    """Write a context and its binary into a folder, and as JSON what is in them, or `error`: why there is none.

    NAME is the file of a model in the folder MODELS, and of its context in FOLDER beside it. The model is read into
    memory and the working folder is the one of the files, because the provider writes a digest of the model's path and
    the names of files into what it makes: so the same model gives the same bytes wherever it lies. Several contexts in
    one binary (`NAME/NAME…`) are made of relative paths for that, since the provider composes none from memory.
    """
    names = name.split("/")
    shared = len(names) > 1
    paths = [Path(models, file) for file in names]
    contents = [f"../{path.parent.name}/{path.name}" if shared else path.read_bytes() for path in paths]
    os.chdir(folder)
    _write_output_to(Path(f"{answer}.log"))
    try:
        sessions = []
        for file, content in zip(names, contents, strict=True):
            entries = {
                "ep.context_enable": "1",
                "ep.context_file_path": file,
                "ep.context_embed_mode": "0",
                "ep.share_ep_contexts": str(int(shared)),
                "ep.stop_share_ep_contexts": str(int(shared and file == names[-1])),
                "session.record_ep_graph_assignment_info": "1",
            }
            # What is left to the CPU is saved as it is then: levels above basic make it for this computer's processor.
            level = "ORT_ENABLE_BASIC"
            sessions.append(_session(content, _by_key(pairs), severity=3, level=level, entries=entries))
        parts = [session.get_provider_graph_assignment_info() for session in sessions]
        document: dict[str, Any] = {"subgraphs": [[[p.ep_name, len(p.get_nodes())] for p in graph] for graph in parts]}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        document = {"error": str(error)}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    document |= {"seconds": usage.ru_utime + usage.ru_stime, "memory_bytes": usage.ru_maxrss * 1024}
    Path(answer).write_text(json.dumps(document), encoding="utf-8")


TASKS: Mapping[str, Callable[..., None]] = {"claims": claims, "contexts": contexts}


def _write_output_to(log: Path) -> None:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):  # what libraries write to stdout and stderr
        os.dup2(descriptor, stream)


def _by_key(pairs: tuple[str, ...]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs)


@cache
def _devices() -> list[Any]:
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER][:1]


def _session(
    model: str | bytes, options: Mapping[str, str], *, severity: int, level: str, entries: Mapping[str, str]
) -> "onnxruntime.InferenceSession":
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    from pipeline.core import custom_ops as core_custom_ops

    devices = _devices()
    asked = ort.SessionOptions()
    core_custom_ops.register(asked)
    asked.log_severity_level = severity
    asked.intra_op_num_threads = 1
    asked.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for key, value in entries.items():
        asked.add_session_config_entry(key, value)
    asked.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), **options})
    # Without enable_fallback=0, an error while the provider is made becomes a session on the CPU.
    return ort.InferenceSession(model, asked, enable_fallback=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # the backend's own destructors crash at times, after the answer is written
