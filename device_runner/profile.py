"""ONNX Runtime's profile of a run: time by operator and provider, and the partitions that were really made.

The file itself is an array of Chrome trace events and opens in Perfetto (ui.perfetto.dev) as it is. Profiling costs
3 to 13 µs a node: shares are to be trusted, not totals. Nodes of a control-flow body count in their parent too.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from device_runner.errors import RunnerError
from device_runner.result import Struct

KERNEL = "_kernel_time"
"""End of the name of a node's own event; releases before 1.21 also had `_fence_before` and `_fence_after`."""

CPU = "CPUExecutionProvider"


class OperatorTime(Struct, frozen=True, kw_only=True):
    """All nodes of one operator on one provider; `nanoseconds` is their time in one inference, on average."""

    operator: str
    provider: str
    nodes: int
    nanoseconds: float
    share: float


class Profile(Struct, frozen=True, kw_only=True):
    """What a profile says. `inferences` are those counted: all but the first, which fills caches and memory.

    `partitions` is by provider without the CPU's: what a provider took appears as one node for each partition.
    Providers with kernels of their own (XNNPACK) appear node by node.
    """

    inferences: int
    operators: tuple[OperatorTime, ...]
    partitions: dict[str, int]


class _Args(msgspec.Struct, frozen=True):
    op_name: str = ""
    provider: str = ""
    node_index: str = ""


class _Event(msgspec.Struct, frozen=True):
    """A trace event; times are microseconds from the start of profiling."""

    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = _Args()


def read_profile(path: Path) -> Profile:
    """What the profile in a file says; raises RunnerError for a file that is none or has no inference in it."""
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event], strict=False)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunnerError(
            "the profile cannot be read", where=str(path), why=str(error), remedy="run it once more"
        ) from error
    runs = sorted((event for event in events if event.name == "model_run"), key=lambda event: event.ts)
    if not runs:
        raise RunnerError("the profile has no inference in it", where=str(path), remedy="run it once more")
    counted = runs[1:] or runs
    kernels = [event for event in events if event.name.endswith(KERNEL) and event.ts >= counted[0].ts]
    return Profile(
        inferences=len(counted), operators=_operators(kernels, len(counted)), partitions=_partitions(kernels)
    )


def _operators(kernels: Iterable[_Event], inferences: int) -> tuple[OperatorTime, ...]:
    """The slowest first."""
    times: dict[tuple[str, str], float] = {}
    nodes: dict[tuple[str, str], set[str]] = {}
    for event in kernels:
        key = (_operator(event.args), event.args.provider)
        times[key] = times.get(key, 0.0) + event.dur
        nodes.setdefault(key, set()).add(event.name)
    total = sum(times.values()) or 1.0
    return tuple(
        OperatorTime(
            operator=key[0],
            provider=key[1],
            nodes=len(nodes[key]),
            nanoseconds=1e3 * microseconds / inferences,
            share=microseconds / total,
        )
        for key, microseconds in sorted(times.items(), key=lambda item: -item[1])
    )


def _operator(args: _Args) -> str:
    """The operator, or for a partition (Nnapi_DIGEST_N, KEY_CoreML_DIGEST_N) that it is one: digests tell nobody."""
    taken = next((name for name in ("Nnapi_", "CoreML_", "QNN_") if name.lower() in args.op_name.lower()), None)
    return "(partition)" if taken and args.provider != CPU else args.op_name


def _partitions(kernels: Iterable[_Event]) -> dict[str, int]:
    found: dict[str, set[str]] = {}
    for event in kernels:
        if event.args.provider not in ("", CPU):
            found.setdefault(event.args.provider, set()).add(event.args.node_index or event.name)
    return {provider: len(nodes) for provider, nodes in sorted(found.items())}
