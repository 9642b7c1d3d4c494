"""One session of the QNN provider, in a process of its own: `python -m … MODEL ANSWER INPUTS KEY=VALUE…`.

A process for each question, because the compiler crashes on some models and keeps state between sessions: one with a
wrong chip computes otherwise after one with a right chip than alone. Custom operators are all that is imported of this
project.
"""

import ctypes
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

PROVIDER = "QNNExecutionProvider"
INVALID = re.compile(r"backendValidateOpConfig\(\) failed for node [`'](.+?)[`'] of type [`'](\w+)[`'] with error code")
"""What the backend logs of an operator that it does not have for such types and shapes."""

FAILED = re.compile(r"Validation FAILED .*\n((?:\s+Operator type: .*\n)+)\s+REASON : (.*)")
NAMED = re.compile("Node name: (.+) Node index")
"""What the provider logs, at its most verbose, of nodes that it refuses."""

PR_SET_PDEATHSIG = 1


def main(model: str, answer: str, inputs: str, *pairs: str) -> None:
    """Write as JSON what the provider takes of a model.

    `subgraphs` are providers with their nodes (name, domain, operator), `refusals` the provider's reasons and `invalid`
    the backend's operators by names of nodes; or `error` is why no session is made. With `inputs`, an .npz of arrays in
    the order of the model's inputs, sample by sample, the chip's simulator runs it, and its outputs are beside the
    answer as .npz.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # who asked may be killed
    with tempfile.TemporaryDirectory(dir=Path(answer).parent) as folder:
        log = Path(folder) / "log"
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY)
        for stream in (1, 2):  # what libraries write to stdout and stderr
            os.dup2(descriptor, stream)
        try:
            import onnxruntime as ort
            import onnxruntime_qnn as qnn

            from pipeline.core import custom_ops

            ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
            devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER][:1]
            options = ort.SessionOptions()
            custom_ops.register(options)
            options.log_severity_level = 2  # the backend's validation errors are warnings
            options.intra_op_num_threads = 1
            # The provider is shown the graph as it stands; it changes layouts and fuses all the same.
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
            trace = {"enable_framework_op_trace": "1", "framework_op_trace_dir": folder}
            options.add_provider_for_devices(
                devices, {"backend_path": qnn.get_qnn_htp_path(), **trace, **dict(pair.split("=", 1) for pair in pairs)}
            )
            # Without enable_fallback=0, an error while the provider is made becomes a session on the CPU.
            session = ort.InferenceSession(model, options, enable_fallback=0)
            subgraphs = [
                [part.ep_name, [[node.name, node.domain, node.op_type] for node in part.get_nodes()]]
                for part in session.get_provider_graph_assignment_info()
            ]
            refusals = _refusals(Path(folder) / "qnn_op_trace.json")
            if refusals is None:  # the trace is not written where all that it would take are single Q or DQ nodes
                options.log_severity_level = 0
                ort.InferenceSession(model, options, enable_fallback=0)
                failed = FAILED.findall(log.read_text(encoding="utf-8", errors="replace"))
                refusals = {name: reason for nodes, reason in failed for name in NAMED.findall(nodes)}
            document = {"subgraphs": subgraphs, "refusals": refusals}
            if inputs:
                import numpy as np

                session.disable_fallback()
                with np.load(inputs, allow_pickle=False) as arrays:
                    names = [value.name for value in session.get_inputs()]
                    results = []
                    for start in range(0, len(arrays.files), len(names)):
                        feeds = {name: arrays[f"arr_{start + place}"] for place, name in enumerate(names)}
                        results += session.run(None, feeds)
                np.savez(Path(answer).with_suffix(".npz"), *results)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            document = {"error": str(error)}
        document["invalid"] = dict(INVALID.findall(log.read_text(encoding="utf-8", errors="replace")))
    Path(answer).write_text(json.dumps(document), encoding="utf-8")


def _refusals(trace: Path) -> dict[str, str] | None:
    """Why nodes are refused, by their names, from the provider's trace; None where it wrote none."""
    if not trace.is_file():
        return None
    rows = json.loads(trace.read_text(encoding="utf-8"))["unsupported_nodes"]
    return {row["node_name"]: row["reason"] for row in rows}


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # the backend's own destructors crash at times, after the answer is written
