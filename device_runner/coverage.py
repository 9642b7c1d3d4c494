"""What of a model an execution provider really took, as ONNX Runtime's log says it."""

import re
from collections.abc import Iterable

from device_runner.result import Struct

CAPABILITY = re.compile(
    r"(\w+)ExecutionProvider::GetCapability, number of partitions supported by \w+: (\d{1,9})"
    r" number of nodes in the graph: (\d{1,9}) number of nodes supported by \w+: (\d{1,9})"
)
"""NNAPI and CoreML say this at each session, as a warning when nodes are left (facts of 1.12 to 1.28)."""

LEFT_OVER = "Some nodes were not assigned to the preferred execution providers"


class Coverage(Struct, frozen=True, kw_only=True):
    """Nodes of the graph, how many of them the provider took, and in how many partitions."""

    provider: str
    partitions: int
    nodes: int
    claimed_nodes: int


def measured_coverage(log: Iterable[str]) -> Coverage | None:
    """What the first provider of the log that says so took; None when none does."""
    for line in log:
        if found := CAPABILITY.search(line):
            numbers = [int(number) for number in found.groups()[1:]]
            return Coverage(
                provider=found[1].lower(), partitions=numbers[0], nodes=numbers[1], claimed_nodes=numbers[2]
            )
    return None


def fell_back(log: Iterable[str]) -> bool:
    """Whether the log says that nodes were left to the CPU."""
    lines = list(log)
    coverage = measured_coverage(lines)
    partly = coverage is not None and coverage.claimed_nodes < coverage.nodes
    return partly or any(LEFT_OVER in line for line in lines)
