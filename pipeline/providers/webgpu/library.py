"""What a genuine library says of WebGPU's claims, in its verbose log."""

import re
from collections.abc import Sequence

from pipeline.partition.answer import Settings
from pipeline.partition.provider_claims import LoggedRefusals

NO_KERNEL = re.compile(r"webgpu kernel not found in registries for Op type: (\S+) node name: (.*)")
LEFT_TO_CPU = re.compile(r"Force fallback to CPU execution for node:? (.+?) because (.*)")
FORCED = re.compile(r"Force CPU execution for node: (.*)")
OTHER_OPSET = re.compile(r"cannot be used with this model due to its ONNX opset .*")
"""What WebGPU logs: each node that has no kernel, and each that is left to the CPU all the same.

ONNX Runtime's record of assigned nodes will not do, nor its list of placements: in the layout NHWC the provider is
asked twice, and both have what became of the graph between.
"""


def session_entries(settings: Settings) -> dict[str, str]:
    """The options that decide claims, as entries of a session.

    A session with graph capture is not made where a node is refused: only its enableInt64 is asked for.
    """
    prefix, asked = "ep.webgpuexecutionprovider.", settings.webgpu
    entries = {f"{prefix}preferredLayout": asked.layout, f"{prefix}enableInt64": str(int(asked.int64))}
    return entries | ({f"{prefix}forceCpuNodeNames": "\n".join(asked.cpu_nodes)} if asked.cpu_nodes else {})


def read_log(log: Sequence[str], settings: Settings) -> LoggedRefusals:
    """What it refused, by the names of nodes."""
    kinds = {match.group(2): match.group(1) for line in log if (match := NO_KERNEL.search(line))}
    reasons: dict[str, str] = {}
    for line in log:
        if match := NO_KERNEL.search(line):
            reasons.setdefault(match.group(2), "its registry has no kernel for this operator, opset and these types")
        elif match := FORCED.search(line):
            reasons.setdefault(match.group(1), "forceCpuNodeNames names it")
        # In the layout NHWC what is left to the CPU is claimed when the provider is asked again (webgpu W.2.1).
        elif not settings.nhwc and (match := LEFT_TO_CPU.search(line)):
            reasons.setdefault(match.group(1), match.group(2))
    nothing = next((match.group() for line in log if (match := OTHER_OPSET.search(line))), "")
    return LoggedRefusals(kinds=kinds, reasons=reasons, nothing=nothing)
