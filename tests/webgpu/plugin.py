"""Asks the WebGPU plugin of the package onnxruntime-ep-webgpu what it claims, on a software Vulkan driver.

A plugin may end its process, so that models are asked about in a process of their own, `python -m tests.webgpu.plugin
LAYOUT [OPTION=VALUE...]`: it reads paths, one a line, and prints a label for each. ONNX Runtime's log says which nodes
have no kernel and how many copies it inserts; it names nodes, so that each is called after its first output.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

NO_KERNEL = re.compile(
    r"webgpu kernel not found in registries for Op type: (\S+) node name: (.*?)(?:\x1b|$)", re.MULTILINE
)
FORCED = re.compile(r"Force fallback to CPU execution for node:? (.+?) because", re.MULTILINE)
COPY = re.compile(r"Add Memcpy(?:From|To)Host (?:after|before) .* for WebGpu")
OTHER_OPSET = "WebGpuExecutionProvider cannot be used with this model due to its ONNX opset"
EVERY = "*"
"""In place of names: no node is claimed."""

ENVIRONMENT = {"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1", "ORT_DISABLE_TELEMETRY": "1"}


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the plugin did with a model: the nodes that have no kernel, in the body of If and functions too; those that
    it left to the CPU all the same; the copies in the main graph. With `error` there was no session."""

    refused: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    copies: int = 0
    error: str = ""


def named(model: "ModelProto") -> "ModelProto":
    """The model, its nodes called after their first outputs, in functions too, and in bodies with a number behind, as
    both branches of an If may have an output of one name.
    """
    pending: list[tuple[str, Iterable[NodeProto]]] = [("", function.node) for function in model.functions]
    pending.append(("", model.graph.node))
    for mark, nodes in pending:  # grows as it goes
        for node in nodes:
            node.name = next((name for name in node.output if name), node.name) + mark
            for body in (attribute.g for attribute in node.attribute if attribute.type == 5):
                pending.append((f"@{len(pending)}", body.node))
    return model


def drivers() -> dict[str, str]:
    """The environment for a software Vulkan driver; empty where none is found.

    VK_ICD_FILENAMES names one; else that of Debian's chromium is taken.
    """
    chromium = Path("/usr/lib/chromium")
    if os.environ.get("VK_ICD_FILENAMES"):
        return dict(ENVIRONMENT)
    if (chromium / "vk_swiftshader_icd.json").is_file():
        return ENVIRONMENT | {
            "VK_ICD_FILENAMES": str(chromium / "vk_swiftshader_icd.json"), "LD_LIBRARY_PATH": str(chromium)
        }  # fmt: skip
    return {}


def ask(paths: Sequence[Path], options: dict[str, str]) -> Iterator[tuple[Path, Label]]:
    """A label for every model, in their order; one that ends the process has that as its error."""
    waiting = list(paths)
    while waiting:
        done = 0
        for label in _asked(waiting, options):
            yield waiting[done], label
            done += 1
        if done < len(waiting):
            yield waiting[done], Label(error="the process ended")
        waiting = waiting[done + 1 :]


def _asked(paths: Iterable[Path], options: dict[str, str]) -> Iterator[Label]:
    words = [f"{key}={value}" for key, value in options.items()]
    with tempfile.TemporaryFile("w+") as listed:
        listed.write("".join(f"{path}\n" for path in paths))
        listed.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", "tests.webgpu.plugin", *words],
            stdin=listed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | drivers(),
        ) as child:  # fmt: skip
            assert child.stdout is not None
            for line in child.stdout:
                yield msgspec.json.decode(line, type=Label)


def main() -> None:
    """Answer for the paths on the standard input, with the plugin's options as arguments."""
    import onnxruntime
    from onnxruntime_ep_webgpu import get_library_path  # type: ignore[import-not-found,import-untyped,unused-ignore]

    options = dict(word.split("=", 1) for word in sys.argv[1:])
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)  # where ONNX Runtime logs to
        onnxruntime.register_execution_provider_library("webgpu", get_library_path())
        devices = [row for row in onnxruntime.get_ep_devices() if row.ep_name == "WebGpuExecutionProvider"]
        for line in sys.stdin:
            label = _label(Path(line.rstrip("\n")), devices, options, log)
            out.write(msgspec.json.encode(label) + b"\n")


def _label(path: Path, devices: "list[object]", options: dict[str, str], log: "object") -> Label:
    import onnx
    import onnxruntime

    log.seek(0)  # type: ignore[attr-defined]
    log.truncate()  # type: ignore[attr-defined]
    asked = onnxruntime.SessionOptions()
    asked.log_severity_level = 1
    asked.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    asked.add_provider_for_devices(devices[:1], options)
    error, functions = "", set[str]()
    try:
        model = named(onnx.load(path))
        functions = {row.name for row in model.functions}
        content = model.SerializeToString()
        onnxruntime.InferenceSession(content, asked, enable_fallback=False)
    except Exception as problem:  # noqa: BLE001 - whatever a hostile model raises is its label
        error = f"{type(problem).__name__}: {problem}"[:300]
    log.seek(0)  # type: ignore[attr-defined]
    text = log.read().decode("utf-8", "replace")  # type: ignore[attr-defined]
    # Calls of the model's own functions have no kernel either; what counts is what they are inlined to.
    refused = dict.fromkeys(name for op_type, name in NO_KERNEL.findall(text) if op_type not in functions)
    forced = FORCED.findall(text) if options.get("preferredLayout") == "NCHW" else ()
    copies = len(COPY.findall(text))
    if OTHER_OPSET in text:
        refused = {EVERY: None}
    return Label(refused=tuple(refused), forced=tuple(dict.fromkeys(forced)), copies=copies, error=error)


if __name__ == "__main__":
    main()
