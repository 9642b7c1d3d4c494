"""ONNX Runtime's profile and log of a run: time by operator, and what execution providers really took.

The file itself is an array of Chrome trace events. It is kept gzipped, which Perfetto (ui.perfetto.dev) opens as it is:
events are much alike, and 138 MB of six models became 8.6 MB. Profiling costs 3 to 13 µs a node: shares are to be
trusted, not totals. Nodes of a control-flow body count in their parent too.
"""

import gzip
import re
import shutil
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from device_runner.errors import RunnerError
from device_runner.files import scratch_folder
from device_runner.result import (
    Failure,
    FailureKind,
    NodeTime,
    OperatorTime,
    Profile,
    RunResult,
    ValueCopy,
    status_of,
)
from device_runner.spec import LogLevel, RunSpec
from device_runner.untrusted_files import decode_json

KERNEL = "_kernel_time"
"""End of the name of a node's own event; releases before 1.21 also had `_fence_before` and `_fence_after`."""

CPU = "CPUExecutionProvider"
PARTITION = "(partition)"
"""What stands for the operator of what a provider compiled."""
COPY = "Memcpy"
"""Beginning of the operators that ONNX Runtime inserts between the memories of two providers."""
ADDED_COPY = re.compile(rf"Add ({COPY}(?:From|To)Host) (?:after|before) (.+) for \w+ExecutionProvider$")
"""What its log says of each, at level info, in the order of their numbers (transformer_memcpy.cc, AddCopyNode)."""


Microseconds = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]

GZIP = b"\x1f\x8b"

MOST_EVENTS = 1_500_000
"""ONNX Runtime's profiler stops at a million; each has two objects."""

MOST_OPERATORS = 5_000
"""Kinds of operators that a model is believed to have on all providers together."""


MOST_NODES = 50_000
"""Nodes of which each is kept: what is more is no model for a phone."""


Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class _Args(msgspec.Struct, frozen=True):
    op_name: str = ""
    provider: str = ""
    node_index: str = ""
    output_size: Bytes = 0
    mem_in_use_peak: Bytes = 0
    mem_arena_held: Bytes = 0


class _Event(msgspec.Struct, frozen=True):
    """A trace event; times are microseconds from the start of profiling."""

    name: str = ""
    ts: Microseconds = 0.0
    dur: Microseconds = 0.0
    args: _Args = _Args()


def with_profiler(spec: RunSpec, folder: str) -> RunSpec:
    """The same run with ONNX Runtime's profiler on, its file in `folder`, and what providers claim in its log."""
    return msgspec.structs.replace(spec, profile=True, outputs_folder=folder, log_level=LogLevel.INFO)


def with_profile(result: RunResult, file: Path) -> RunResult:
    """The result of a profile run with its trace gzipped at `file`, named *.json.gz, and what that says.

    One that left none, or one that cannot be read, is a failed run. Raises OSError when the file cannot be written.
    """
    if result.failure:
        return result
    message = "the run left no profile"
    if result.profile_file is not None:
        trace = Path(result.profile_file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".part-", file.parent) as folder:  # it stands there whole or not at all
            part = folder / "trace"
            with (
                trace.open("rb") as source,
                part.open("wb") as raw,  # without a name and a time the same trace gives the same bytes
                gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as target,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
            part.replace(file)
        trace.unlink()
        result = msgspec.structs.replace(result, profile_file=str(file))
        try:
            return msgspec.structs.replace(result, profile=read_profile(file, result.log))
        except RunnerError as error:
            message = str(error)
    failure = Failure(
        code=FailureKind.GARBAGE,
        what=message,
        why="ONNX Runtime's profiler wrote nothing that can be read",
        remedy="run it once more; some builds have no profiler",
    )
    return msgspec.structs.replace(result, status=status_of(failure), failure=failure)


def _copies(kernels: Sequence[_Event], log: Iterable[str], inferences: int) -> tuple[ValueCopy, ...]:
    """Each copy between memories, in the order in which ONNX Runtime inserted them, with the names that a log has."""
    moves: dict[tuple[int, str], list[_Event]] = {}
    for event in kernels:
        if event.args.op_name.startswith(COPY) and event.args.node_index.isdecimal():
            moves.setdefault((int(event.args.node_index[:9]), event.args.op_name), []).append(event)
    numbers, operators = [number for number, _ in sorted(moves)], [operator for _, operator in sorted(moves)]
    added = [match.groups() for line in log if (match := ADDED_COPY.search(line))]
    # Those of one graph have numbers without a gap: copies in bodies of If and Loop, and lost lines, leave no names.
    named = bool(added) and operators == [operator for operator, _ in added]
    in_order = named and numbers == [*range(numbers[0], numbers[0] + len(added))]
    return tuple(
        ValueCopy(
            value=added[number][1] if in_order else "",
            to_host=move[1].endswith("ToHost"),
            size_bytes=sum(event.args.output_size for event in moves[move]) // inferences,
            nanoseconds=1e3 * _usual(event.dur for event in moves[move]) * len(moves[move]) / inferences,
        )
        for number, move in enumerate(sorted(moves)[:MOST_NODES])
    )


def read_profile(path: Path, log: Iterable[str] = ()) -> Profile:
    """What the profile in a file says, gzipped or not; raises RunnerError for one that is none or has no inference.

    `log` is the run's, which names the values that are copied.
    """
    try:
        with path.open("rb") as raw:
            source = gzip.GzipFile(fileobj=raw) if raw.read(2) == GZIP else raw
            raw.seek(0)
            data = source.read(PROFILE_LIMIT_BYTES + 1)
        if len(data) > PROFILE_LIMIT_BYTES or data.count(b"{") > 2 * MOST_EVENTS:
            raise msgspec.ValidationError("it has more events than ONNX Runtime writes")
        events = decode_json(data, list[_Event], strict=False)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunnerError(
            "the profile cannot be read", where=str(path), why=str(error), remedy="run it again"
        ) from error
    runs = sorted((event for event in events if event.name == "model_run"), key=lambda event: event.ts)
    if not runs:
        raise RunnerError("the profile has no inference in it", where=str(path), remedy="run it once more")
    counted = runs[1:] or runs
    kernels = [event for event in events if event.name.endswith(KERNEL) and event.ts >= counted[0].ts]
    # Each node once, in the order of their first run. Nodes of a loop's body run several times an inference.
    durations: dict[tuple[str, str, str], list[float]] = {}
    for event in kernels:
        # A partition (Nnapi_DIGEST_N, KEY_CoreML_DIGEST_N) is only called one: digests tell nobody.
        operator, provider = event.args.op_name, event.args.provider
        taken = any(name in operator.lower() for name in ("nnapi_", "coreml_", "qnn_")) and provider != CPU
        key = (event.name.removesuffix(KERNEL), PARTITION if taken else operator, provider)
        durations.setdefault(key, []).append(event.dur)
    nodes = tuple(
        NodeTime(
            name=name,
            operator=operator,
            provider=provider,
            nanoseconds=1e3 * _usual(values) * len(values) / len(counted),
        )
        for (name, operator, provider), values in durations.items()
    )
    groups: dict[tuple[str, str], list[NodeTime]] = {}
    for node in nodes:
        groups.setdefault((node.operator, node.provider), []).append(node)
    if len(groups) > MOST_OPERATORS:
        raise RunnerError("the profile cannot be read", why=f"it names {len(groups)} operators", remedy="run it again")
    times = {key: sum(node.nanoseconds for node in group) for key, group in groups.items()}
    total = sum(times.values()) or 1.0
    partitions: dict[str, set[str]] = {}
    for event in kernels:
        if event.args.provider not in ("", CPU):
            partitions.setdefault(event.args.provider, set()).add(event.args.node_index or event.name)
    inference_ns = 1e3 * _usual(run.dur for run in counted)
    return Profile(
        inferences=len(counted),
        operators=tuple(
            OperatorTime(operator=key[0], provider=key[1], nodes=len(groups[key]), nanoseconds=time, share=time / total)
            for key, time in sorted(times.items(), key=lambda pair: -pair[1])  # the slowest first
        ),
        partitions={provider: len(names) for provider, names in sorted(partitions.items())},
        nodes=nodes if len(nodes) <= MOST_NODES else (),
        inference_ns=inference_ns,
        overhead_ns=max(inference_ns - sum(node.nanoseconds for node in nodes), 0.0),
        written_bytes=sum(event.args.output_size for event in kernels) // len(counted),
        copied_bytes=sum(event.args.output_size for event in kernels if event.args.op_name.startswith(COPY))
        // len(counted),
        copies=_copies(kernels, log, len(counted)),
        peak_bytes=max((event.args.mem_in_use_peak for event in kernels), default=0),
        arena_bytes=max((event.args.mem_arena_held for event in kernels), default=0),
    )


def _usual(durations: Iterable[float]) -> float:
    """The mean of the middle half: interruptions do not count, and whole microseconds still give fractions."""
    ordered = sorted(durations)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)


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
        if match := CAPABILITY.search(line):
            numbers = [int(number) for number in match.groups()[1:]]
            return Coverage(
                provider=match[1].lower(), partitions=numbers[0], nodes=numbers[1], claimed_nodes=numbers[2]
            )
    return None


def fell_back(log: Iterable[str]) -> bool:
    """Whether the log says that nodes were left to the CPU."""
    lines = list(log)
    coverage = measured_coverage(lines)
    partly = coverage is not None and coverage.claimed_nodes < coverage.nodes
    return partly or any(LEFT_OVER in line for line in lines)


PROFILE_LIMIT_BYTES = 1 << 30
"""The profiler stops at a million events of some 600 bytes."""
