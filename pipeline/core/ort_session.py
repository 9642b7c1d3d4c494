"""Sessions of the installed onnxruntime on this computer's CPU: one place for level, threads, logs and what is kept.

Weights are prepacked, as an app's session does, but for `NO_PREPACKING`. A session that saves is thrown away as soon as
it has: nothing is prepacked for it, and arenas and spinning threads serve nobody.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from device_runner import options as runner_options
from pipeline.core import custom_ops as core_custom_ops
from pipeline.core.variant import Level

CPU = "CPUExecutionProvider"
FATAL_ONLY = 4
LEVELS = {
    Level.NONE: "ORT_DISABLE_ALL",
    Level.BASIC: "ORT_ENABLE_BASIC",
    Level.EXTENDED: "ORT_ENABLE_EXTENDED",
    Level.LAYOUT: "ORT_ENABLE_LAYOUT",
    Level.ALL: "ORT_ENABLE_ALL",
}
NO_PREPACKING = {"session.disable_prepacking": "1"}
"""Weights stay where they are mapped: for a session that saves or is asked something, whose outputs nobody judges."""
NO_SPINNING = dict.fromkeys(runner_options.SPINNING_KEYS, "0")
EXACT_PRODUCTS = {"session.x64quantprecision": "1"}
"""Products of 8-bit numbers as ARM computes them: without it, x86 processors without VNNI saturate sums of two products
in 16 bits, and models that are right on phones are wrong here. It changes what the extended level makes of an ONNX
model, nothing else, and on some models that fails (quantization Q.5).
"""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def session_options(
    level: Level = Level.NONE,
    *,
    save_to: Path | None = None,
    weights: Path | None = None,
    config: Mapping[str, str] = {},
    device: Any = None,
    brief: bool = False,
    small: bool = False,
) -> Any:
    """Onnxruntime's SessionOptions. A session that saves to `save_to` is not for running.

    `weights` is the folder of external weights of a model in memory; `config` are further session config entries, which
    win over those set here. `device` is that of a provider from a library, which is asked before the CPU. `brief`: it
    runs a few times, so that nothing spins between operators, and on a `small` model one thread does all.
    """
    from onnxruntime.capi import _pybind_state as ort

    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    # Without prepacking, onnxruntime plans initializers as one block, in time that grows with their square.
    options.enable_mem_pattern = False
    entries = {**(NO_PREPACKING if save_to else {}), **(NO_SPINNING if save_to or brief else {})}
    if save_to or (brief and small):
        options.intra_op_num_threads = 1
    if save_to:
        options.optimized_model_filepath = str(save_to)
        options.enable_cpu_mem_arena = False
    if weights:
        entries[WEIGHTS_FOLDER] = str(weights)
    for key, value in {**entries, **config}.items():
        options.add_session_config_entry(key, value)
    core_custom_ops.register(options)
    if device is not None:
        options.add_provider_for_devices([device], {})
    return options


def make_session(model: bytes | Path, options: Any) -> Any:
    """A session on the CPU with `session_options`, saved or ready to run; raises what `ort_errors` names."""
    import onnxruntime

    source = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(source, options, providers=[CPU])


def load_session(model: bytes, options: Any) -> Any:
    """A session that is loaded and not initialized: it knows types and shapes, and can be told providers.

    onnxruntime's low-level class; the public one answers a failure by trying the same again. The caller's thread does
    all, whatever `options` say: no others are started. Raises as `make_session`.
    """
    from onnxruntime.capi import _pybind_state as ort

    options.intra_op_num_threads = 1
    return ort.InferenceSession(options, model, False, False)


def ort_errors() -> tuple[type[Exception], ...]:
    """Everything that onnxruntime raises: its own classes share no base but Exception."""
    from onnxruntime.capi import _pybind_state as ort

    kinds = [value for value in vars(ort).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*kinds, RuntimeError, ValueError, MemoryError)


def first_line(error: Exception) -> str:
    """The first line of what an exception says, or its type."""
    return str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__
