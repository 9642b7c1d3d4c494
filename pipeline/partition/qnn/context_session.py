"""One context of the QNN provider, made in a process of its own: `python -m … MODELS FOLDER NAME ANSWER KEY=VALUE…`.

NAME is the file of a model in the folder MODELS, and of its context in FOLDER beside it. The model is read into memory
and the working folder is the one of the files, because the provider writes a digest of the model's path and the names
of files into what it makes: so the same model gives the same bytes wherever it lies. Several contexts in one binary
(`NAME/NAME…`) are made of relative paths for that, since the provider composes none from memory.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

PROVIDER = "QNNExecutionProvider"
PR_SET_PDEATHSIG = 1


def main(models: str, folder: str, name: str, answer: str, *pairs: str) -> None:
    """Write NAME and its binary into a folder, and as JSON what is in them, or `error`: why there is none."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # who asked may be killed
    names = name.split("/")
    shared = len(names) > 1
    paths = [Path(models, file) for file in names]
    contents = [f"../{path.parent.name}/{path.name}" if shared else path.read_bytes() for path in paths]
    os.chdir(folder)
    log = os.open(f"{answer}.log", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):  # libraries write to both
        os.dup2(log, stream)
    try:
        import onnxruntime as ort
        import onnxruntime_qnn as qnn

        from pipeline.core import custom_ops

        ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
        devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER][:1]
        sessions = []
        for file, content in zip(names, contents, strict=True):
            options = ort.SessionOptions()
            custom_ops.register(options)
            options.log_severity_level = 3
            options.intra_op_num_threads = 1
            # What is left to the CPU is saved as it is then: levels above basic make it for this computer's processor.
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            entries = {
                "ep.context_enable": "1",
                "ep.context_file_path": file,
                "ep.context_embed_mode": "0",
                "ep.share_ep_contexts": str(int(shared)),
                "ep.stop_share_ep_contexts": str(int(shared and file == names[-1])),
                "session.record_ep_graph_assignment_info": "1",
            }
            for key, value in entries.items():
                options.add_session_config_entry(key, value)
            options.add_provider_for_devices(
                devices, {"backend_path": qnn.get_qnn_htp_path(), **dict(pair.split("=", 1) for pair in pairs)}
            )
            # Without enable_fallback=0, an error while the provider is made becomes a session on the CPU.
            sessions.append(ort.InferenceSession(content, options, enable_fallback=0))
        parts = [session.get_provider_graph_assignment_info() for session in sessions]
        document: dict[str, Any] = {"subgraphs": [[[p.ep_name, len(p.get_nodes())] for p in graph] for graph in parts]}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        document = {"error": str(error)}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    document |= {"seconds": usage.ru_utime + usage.ru_stime, "memory_bytes": usage.ru_maxrss * 1024}
    Path(answer).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # the backend's own destructors crash at times, after the answer is written
