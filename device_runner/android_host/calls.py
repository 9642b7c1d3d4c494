"""The record of NNAPI calls: read back, summed up, and as the table of what each flag does at each level."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.library_facts import LIBRARY, LibraryFacts
from device_runner.result import RunResult, Status
from device_runner.spec import NnapiFlag, RunOptions, RunSpec

PREFIX = "ANeuralNetworks"
DEVICE_CALLS = frozenset({"_getDeviceCount", "_getDevice", "Device_getName", "Device_getType"})

Call = dict[str, Any]
"""One call: `call` is its name without prefix, `result` its code, the rest its arguments."""


class CallSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one session and its runs asked of NNAPI. `partitions` has the operations of each model in their order.

    `compiled_for` is how many devices a compilation was made for; 0 leaves the choice to the system. `nchw` is None
    where no convolution or pool was asked for.
    """

    asked_devices: bool = False
    partitions: tuple[tuple[str, ...], ...] = ()
    relaxed: bool = False
    nchw: bool | None = None
    compiled_for: int | None = None
    runs: int = 0


def read_calls(path: Path, caller: str = LIBRARY) -> list[Call]:
    """The provider's calls in their order, without those of the probe; raises msgspec.DecodeError, OSError.

    `caller` is the file name of the library that the provider is in.
    """
    calls = [msgspec.json.decode(line, type=Call) for line in path.read_bytes().splitlines()]
    for call in calls:
        call["call"] = call["call"].removeprefix(PREFIX)
    return [call for call in calls if call.get("caller", caller) == caller]


def summarize(calls: Sequence[Call]) -> CallSummary:
    """The calls of one process, summed up."""
    models = [call["model"] for call in _named(calls, "Model_create")]
    operations = _named(calls, "Model_addOperation")
    compilations = [call for call in calls if call["call"].startswith("Compilation_create")]
    return CallSummary(
        asked_devices=any(call["call"] in DEVICE_CALLS for call in calls),
        partitions=tuple(tuple(op["operation"] for op in operations if op["model"] == model) for model in models),
        relaxed=any(call["allow"] for call in _named(calls, "Model_relaxComputationFloat32toFloat16")),
        nchw=_uses_nchw(operations),
        compiled_for=max((call["devices"] for call in compilations), default=None),
        runs=len(_named(calls, "Execution_startCompute")),
    )


def _named(calls: Sequence[Call], name: str) -> list[Call]:
    return [call for call in calls if call["call"] == name]


def _uses_nchw(operations: Sequence[Call]) -> bool | None:
    """Whether convolutions and pools work on the model's own layout: nothing is transposed around them."""
    names = {op["operation"] for op in operations}
    if not any(name.endswith(("CONV_2D", "POOL_2D")) for name in names):
        return None
    return "TRANSPOSE" not in names


LEVELS = range(26, 32)
FLAGS: tuple[tuple[NnapiFlag, ...], ...] = (
    (),
    (NnapiFlag.USE_FP16,),
    (NnapiFlag.USE_NCHW,),
    (NnapiFlag.CPU_DISABLED,),
    (NnapiFlag.CPU_ONLY,),
    (NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY),
)


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one combination of level and flags led to."""

    level: int
    flags: tuple[NnapiFlag, ...]
    summary: CallSummary
    failure: str = ""


def observe(library: LibraryFacts, model: Path) -> Iterator[CallRow]:
    """Run a model with every flag at every level, each in a fresh process, and sum up what NNAPI was asked."""
    with tempfile.TemporaryDirectory(prefix="ort-mobile-calls-") as folder:
        for level in LEVELS:
            for flags in FLAGS:
                record = Path(folder) / f"{level}-{'-'.join(flags)}.jsonl"
                with AndroidHost("android-host", library, Phone(api_level=level, calls=record)) as device:
                    result = device.run(_spec(model, flags))
                calls = read_calls(record) if record.is_file() else []
                yield CallRow(level=level, flags=flags, summary=summarize(calls), failure=_failure(result))


def _spec(model: Path, flags: tuple[NnapiFlag, ...]) -> RunSpec:
    options = RunOptions(provider="nnapi", flags=flags, intra_op_threads=1)
    return RunSpec(id="calls", model=str(model), options=options, warmup=0, min_runs=1, min_seconds=0.0)


def _failure(result: RunResult) -> str:
    return "" if result.status is Status.OK or not result.failure else result.failure.kind.value


HEAD = """# What each NNAPI flag does at each API level

The calls that ONNX Runtime {release} (the Android library itself) made to NNAPI for {model}, recorded by
`android-host` on a driver profile of one accelerator and the reference device. Written by
`python docs/make_nnapi_calls.py`; a test holds it against the library.

"""
COLUMNS = ("level", "flags", "asks for devices", "operations of each partition", "in fp16", "layout", "for", "outcome")


def table(rows: Sequence[CallRow], *, release: str, model: str) -> str:
    """The rows as a Markdown page."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(_cells, rows)]
    return HEAD.format(release=release, model=model) + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(row: CallRow) -> Sequence[str]:
    summary = row.summary
    targets = {None: "", 0: "what the system chooses", 1: "1 device"}
    layouts = {None: "", True: "NCHW", False: "NHWC"}
    return [
        str(row.level),
        ", ".join(row.flags) or "none",
        "yes" if summary.asked_devices else "no",
        ", ".join(f"{len(names)}" for names in summary.partitions) or "none",
        "allowed" if summary.relaxed else "no",
        layouts[summary.nchw],
        targets.get(summary.compiled_for, f"{summary.compiled_for} devices"),
        row.failure or ("runs" if summary.runs else "runs on the CPU"),
    ]
