"""What a genuine WebGPU provider claims, read from ONNX Runtime's verbose log.

ONNX Runtime's record of assigned nodes will not do: in the layout NHWC the provider is asked twice, and the record
has nodes of the second time only. The log names each node that has no kernel, and each that is left to the CPU all the
same.
"""

import re
from collections.abc import Sequence

from pipeline.partition.answer import WebGpuOptions

NO_KERNEL = re.compile(r"webgpu kernel not found in registries for Op type: \S+ node name: (.*)")
LEFT_TO_CPU = re.compile(r"Force fallback to CPU execution for node:? (.+?) because (.*)")
FORCED = re.compile(r"Force CPU execution for node: (.*)")
NOTHING_TAKEN = "All nodes placed on [CPUExecutionProvider]"


def session_config(options: WebGpuOptions) -> dict[str, str]:
    """The session config entries for the options that decide claims.

    A session with graph capture is not made where a node is refused, so that only its enableInt64 is asked for.
    """
    prefix = "ep.webgpuexecutionprovider."
    config = {f"{prefix}preferredLayout": options.layout, f"{prefix}enableInt64": str(int(options.int64))}
    return config | ({f"{prefix}forceCpuNodeNames": "\n".join(options.cpu_nodes)} if options.cpu_nodes else {})


def refused_nodes(log: Sequence[str]) -> dict[str, str]:
    """The names of refused nodes with the library's reason; those of bodies and functions are among them."""
    reasons: dict[str, str] = {}
    for line in log:
        if match := NO_KERNEL.search(line):
            reasons.setdefault(match.group(1), "its registry has no kernel for this operator, opset and these types")
        elif match := FORCED.search(line):
            reasons.setdefault(match.group(1), "forceCpuNodeNames names it")
        elif match := LEFT_TO_CPU.search(line):
            reasons.setdefault(match.group(1), match.group(2))
    return reasons


def takes_nothing(log: Sequence[str]) -> str:
    """Why the provider was given no node at all, as for an opset that the layout NHWC is not for; "" where it was."""
    return "ONNX Runtime gives it no node of this model" if any(NOTHING_TAKEN in line for line in log) else ""
