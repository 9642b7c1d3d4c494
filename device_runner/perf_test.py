"""ONNX Runtime's own onnxruntime_perf_test in place of the probe: the program, its command line, what it prints.

For users who built it (it is in no package). It gives latencies, the time of loading and the peak of memory; outputs,
a labelled set, the library's version and memory while loading it does not give, and they are absent. Sources: its
code in 1.21 and 1.23, and runs of a real one of 1.21.0. Options are the letters that getopt (to 1.22) and abseil's
flags (from 1.23 on) both take.
"""

import math
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from device_runner.failures import explain
from device_runner.options import SPINNING_KEYS, OptionRule, first_broken
from device_runner.probe import elf as elf_file
from device_runner.probe import protocol
from device_runner.probe.elf import NotElf
from device_runner.profile import fell_back
from device_runner.providers import PROVIDERS, provider_named
from device_runner.result import (
    Failure,
    FailureKind,
    Mark,
    RunResult,
    Status,
    WarmUp,
    find_warmup,
    implausible,
    without_measurement,
)
from device_runner.spec import AUTO, ONNX_CODES, ExecutionMode, RunSpec, TensorFile

OTHER_PROVIDERS = ("acl", "armnn", "dml", "dnnl", "migraphx", "openvino", "rocm", "snpe", "vitisai")
TAKEN_PROVIDERS = sorted([*OTHER_PROVIDERS, *(provider.name for provider in PROVIDERS.values() if provider.perf_test)])
"""What -e takes; anything else makes it print its usage."""

RESULT_FILE = "result.csv"
PROFILE_PREFIX = "profile"
DATA_FOLDER = "test_data_set_0"
"""Beside the model; without it and without -I the tool stops."""


RULES: tuple[OptionRule, ...] = (
    OptionRule(
        lambda o: bool(o.custom_ops),
        "onnxruntime_perf_test is not given custom operators",
        "leave perf_test out: the probe registers them",
    ),
    OptionRule(
        lambda o: bool(o.thread_cores or o.thread_nice),
        "onnxruntime_perf_test leaves threads to ONNX Runtime",
        "leave perf_test out: the probe makes them",
    ),
    OptionRule(
        lambda o: o.device_tensors,
        "onnxruntime_perf_test copies inputs and outputs",
        "leave perf_test out: the probe binds them on the device",
    ),
    OptionRule(
        lambda o: o.provider not in TAKEN_PROVIDERS,
        "onnxruntime_perf_test has no such provider",
        f"ask for one of {', '.join(TAKEN_PROVIDERS)}, or leave perf_test out",
    ),
    OptionRule(
        # Keys and values are split at blanks and the first bar, and cannot be quoted.
        lambda o: any(
            not key or not value or re.search(r"[\s|]", key) or re.search(r"\s", value)
            for key, value in (*o.session_config.items(), *o.provider_options.items())
        ),
        "onnxruntime_perf_test takes no blanks in options, no empty ones, and no | in keys",
        "write the value without them, or leave perf_test out",
    ),
    OptionRule(
        lambda o: provider_named(o.provider).own_threads and bool(o.provider_options),
        "onnxruntime_perf_test gives XNNPACK as many threads as the session has, and takes no options for it",
        "set threads, or leave perf_test out",
    ),
    OptionRule(
        lambda o: provider_named(o.provider).own_threads and o.session_config.get(SPINNING_KEYS[0]) == "1",
        "onnxruntime_perf_test always stops spinning for XNNPACK",
        "set spinning to false, or leave perf_test out",
    ),
)
"""What the probe can and this cannot."""


Ended = tuple["subprocess.CompletedProcess[str]", str, str | None]
"""The tool's process (its exit code is negative for a signal), then what it left in the run
folder: the text of the result file, and the name of the profile."""

Execute = Callable[[list[str]], Ended]
"""Runs the tool with arguments in a run folder that has the model and its inputs; raises TimeoutExpired."""


def refusal(spec: RunSpec) -> Failure | None:
    """Why a spec cannot be run by it; None when it can."""
    cause = "the probe can do this, onnxruntime_perf_test cannot"
    if failure := first_broken(RULES, spec.options, why=cause):
        return failure
    odd = [name for name in spec.dimensions if ":" in name or not name]
    if odd and not spec.inputs:
        text = f"onnxruntime_perf_test takes no dimension of the name {odd[0]!r}"
        return Failure(code=FailureKind.BAD_OPTIONS, what=text, why=cause, remedy="give inputs")
    return None


def measured_with(spec: RunSpec, device: str, prepare: Callable[[Path, str], Execute]) -> RunResult:
    """The result of a spec, from one process or two.

    It counts runs or seconds, never both: where the runs do not fill the seconds, a second process counts those.
    `prepare` fills the run folder for the program and the name by which it loads ONNX Runtime ("": it has it within).
    """
    program = Path(str(spec.perf_test)).absolute()
    failure = None
    if not program.is_file():
        failure = Failure(
            code=FailureKind.MISSING_LIBRARY,
            what=f"{program}: no such file",
            why="onnxruntime_perf_test is not there",
            remedy="give the path of the program: a build of ONNX Runtime with its unit tests makes it",
        )
        return without_measurement(spec, device, failure)
    try:
        needed = elf_file.read_elf(program).needed
        library = next((name for name in needed if name.startswith("libonnxruntime")), "")
    except (NotElf, OSError):
        library = "libonnxruntime.dylib"
    if not library and spec.library:
        failure = Failure(
            code=FailureKind.WRONG_LIBRARY,
            what=f"{program} has ONNX Runtime within, and cannot take {spec.library}",
            why="it was linked without --build_shared_lib",
            remedy="give no library, or a program that loads libonnxruntime",
        )
    if failure := failure or refusal(spec):
        return without_measurement(spec, device, failure)
    execute, model = prepare(program, library), model_name(spec)
    try:
        result = to_result(spec, device, execute(arguments(spec, model)), exact=True)
        short = result.status is Status.OK and sum(result.latencies_ns) < spec.min_seconds * 1e9
        if short and not spec.profile:
            return to_result(spec, device, execute(arguments(spec, model, by_seconds=True)), exact=False)
    except subprocess.TimeoutExpired:
        failure = Failure(code=FailureKind.TIMEOUT, what="onnxruntime_perf_test did not end by itself")
        return without_measurement(spec, device, explain(failure))
    return result


def arguments(spec: RunSpec, model: str, *, by_seconds: bool = False) -> list[str]:
    """Everything behind the program's name; it runs in the folder of the model."""
    options = spec.options
    words = ["-t", str(max(1, math.ceil(spec.min_seconds)))] if by_seconds else ["-r", str(_runs(spec))]
    words += ["-e", options.provider]
    if provider_named(options.provider).has_flags:  # bare names: a bar there is an unknown key, and an exception
        provider_options = " ".join(f"NNAPI_FLAG_{flag.value}" for flag in options.flags)
    else:
        provider_options = " ".join(f"{key}|{value}" for key, value in sorted(options.provider_options.items()))
    if provider_options:
        words += ["-i", provider_options]
    for letter, number in (("-x", options.intra_op_threads), ("-y", options.inter_op_threads)):
        words += [letter, str(number)] if number else []
    words += ["-o", str(protocol.LEVEL_NUMBERS[options.optimization_level])]
    words += ["-P"] if options.execution_mode is ExecutionMode.PARALLEL else []
    words += [] if options.cpu_arena else ["-A"]
    words += [] if options.memory_pattern else ["-M"]
    if options.session_config:
        words += ["-C", " ".join(f"{key}|{value}" for key, value in sorted(options.session_config.items()))]
    if not spec.inputs:  # it makes them: constant, and random for some types with a seed
        words += ["-I", "-S", str(spec.seed % 2**31)]
        words += [word for name, size in spec.dimensions.items() for word in ("-f", f"{name}:{size}")]
    words += ["-p", PROFILE_PREFIX] if spec.profile else []
    return [*words, f"./{model}", RESULT_FILE]


def _runs(spec: RunSpec) -> int:
    """Timed runs, with those that count as warm-up by number: it has one of its own before the clock counts."""
    return max(1, spec.min_runs) + (0 if spec.warmup == AUTO else max(0, spec.warmup - 1))


def tensor_proto(tensor: TensorFile, data: bytes) -> bytes:
    """ONNX's TensorProto: dims (field 1), data_type (2), name (8) and raw_data (9) of onnx.proto."""

    def varint(number: int) -> bytes:
        digits = bytearray()
        while number > 0x7F:
            digits.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*digits, number])

    name = tensor.name.encode()
    dims = b"".join(b"\x08" + varint(size) for size in tensor.shape)
    head = dims + b"\x10" + varint(ONNX_CODES[tensor.dtype])
    return head + b"\x42" + varint(len(name)) + name + b"\x4a" + varint(len(data)) + data


def to_result(spec: RunSpec, device: str, ended: Ended, *, exact: bool) -> RunResult:
    """What it printed, as a result; `exact` when it was told to count runs, all of which must then be there."""
    process, csv, profile = ended
    if process.returncode != 0:  # it ends with 255 whatever went wrong, and says what on either stream
        text = " ".join(f"{process.stdout[-600:]} {process.stderr[-1400:]}".split())
        what = f"onnxruntime_perf_test, exit code {process.returncode}"
        failure = Failure(code=FailureKind.RUN_ERROR, what=f"{what}: {text}")
        if process.returncode < 0:
            name = SIGNALS.get(-process.returncode, f"signal {-process.returncode}")
            kind = FailureKind.OUT_OF_MEMORY if -process.returncode == 9 else FailureKind.CRASH
            failure = Failure(code=kind, what=f"onnxruntime_perf_test ended by {name}: {text}", signal=name)
        elif "[options...] model_path" in process.stdout:
            failure = Failure(
                code=FailureKind.BAD_OPTIONS,
                what="onnxruntime_perf_test printed its usage",
                why="this build of it does not know an option or a value, such as level layout before 1.23",
                remedy="leave the option out, or leave perf_test out",
            )
            return without_measurement(spec, device, failure)
        elif re.search(rf"\b{re.escape(spec.options.provider)} is not supported in this build", text, re.IGNORECASE):
            failure = msgspec.structs.replace(failure, code=FailureKind.PROVIDER_MISSING, why="it was built without it")
        return without_measurement(spec, device, explain(failure))
    # Nanoseconds of each run, from lines of MODEL,SECONDS,PEAK,CPU,INDEX; the name is that of the folder, and may have
    # commas. A line that is not one of its own, or not in its place, makes all of them worthless.
    fields = [line.rsplit(",", 4) for line in csv.splitlines()]
    seconds = [
        _number(r"^(\S+)$", line[1]) if len(line) == 5 and line[4] == str(index) else None
        for index, line in enumerate(fields)
    ]
    times = tuple(round(second * 1e9) for second in seconds if second is not None)
    load = _number(r"Session creation time cost: (\S+) s", process.stdout)
    if not times or None in seconds or load is None or (exact and len(times) != _runs(spec)):
        text = f"{csv[-200:]!r} and {process.stdout[-500:]!r}"
        message = f"what it wrote is not what onnxruntime_perf_test writes, or not all of it: {text}"
        return without_measurement(spec, device, explain(Failure(code=FailureKind.GARBAGE, what=message)))
    if spec.warmup == AUTO:
        warmup = find_warmup(times)
    else:
        warmup = WarmUp(inferences=max(0, spec.warmup - 1), why="as asked for")
    latencies_ns = times[warmup.inferences :] or times[-1:]
    log = tuple(line for line in process.stderr.splitlines() if line.strip())
    marks = {
        Mark.PERF_TEST: True,
        Mark.SHORT: len(latencies_ns) < spec.min_runs,
        Mark.UNSETTLED: not warmup.settled,
        Mark.CPU_FALLBACK: not spec.options.on_cpu and fell_back(log),
    }
    result = RunResult(
        spec_id=spec.id,
        device=device,
        status=Status.OK,
        load_ns=round(load * 1e9),
        first_run_ns=round((_number(r"First inference time cost: (\S+) ms", process.stdout) or 0) * 1e6),
        latencies_ns=latencies_ns,
        warmup_ns=times[: len(times) - len(latencies_ns)],
        warmup=warmup,
        memory_peak_bytes=round(_number(r"Peak working set size: (\S+) bytes", process.stdout) or 0),
        profile_file=profile,
        log=log,
        marks=tuple(mark for mark, applies in marks.items() if applies),
    )
    untrue = implausible(spec, result)
    return without_measurement(spec, device, untrue) if untrue else result


def _number(pattern: str, text: str) -> float | None:
    """A number not below 0 as C++ streams print it; None for anything else."""
    match = re.search(pattern, text)
    plain = match and re.fullmatch(r"\d{1,12}(\.\d{1,12})?(e[+-]\d{1,2})?", match[1])
    return float(plain[0]) if plain else None


SIGNALS = {4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
"""Linux's numbers: the device may be another system than this computer."""


OUTPUT_TAIL_BYTES = 16_384
"""What it prints ends with what matters."""


def input_files(spec: RunSpec) -> Iterator[tuple[str, bytes]]:
    """Names in the run folder and bytes of the inputs; the tool takes them by the number in their names."""
    for index, tensor in enumerate(spec.inputs):
        yield f"{DATA_FOLDER}/input_{index}.pb", tensor_proto(tensor, Path(tensor.file).read_bytes())


def model_name(spec: RunSpec) -> str:
    """How the model is called in the run folder: the tool knows the format by the suffix."""
    return f"model{Path(spec.model).suffix.lower()}"
