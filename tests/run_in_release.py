"""Load and run files in the onnxruntime of this environment; release_agreement.py starts it in those of old releases.

As a program: `python tests/run_in_release.py LIST`: LIST is JSON, rows of a file, its inputs (.npz, "" for those
made up) and the file for its outputs (.npz); prints for each "" or why it does not run. Needs onnxruntime and numpy
alone, of any release from 1.16 on.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "float": "f4", "float16": "f2", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2",
    "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8", "bool": "?",
}  # fmt: skip


UNSAID = "No corresponding Numpy type"
"""Of an output that was computed, and that Python cannot have."""


def made_up(session: Any) -> dict[str, Any]:
    """Inputs of ones; KeyError for types that numpy does not have."""
    values = {}
    for info in session.get_inputs():
        shape = [size if isinstance(size, int) and size >= 0 else 1 for size in info.shape]
        kind = info.type[len("tensor(") : -1]
        values[info.name] = np.full(shape, "a", object) if kind == "string" else np.ones(shape, KINDS[kind])
    return values


def why_not(onnxruntime: Any, file: str, inputs: str, outputs: str) -> str:
    """Why a file does not load or run, "" where it does; a model with inputs that cannot be made is only loaded.

    Outputs that are tensors are written, texts without Python's objects: releases come with different numpys.
    """
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 -- its own kinds, which differ by release
        return f"load: {error}"
    try:
        made = made_up(session)  # asked in any case: it says which types cannot be given
    except KeyError:
        return ""
    given = dict(np.load(inputs, allow_pickle=True)) if inputs else made
    names = {info.name for info in session.get_inputs()}
    try:
        values = session.run(None, {name: value for name, value in given.items() if name in names})
    except Exception as error:  # noqa: BLE001
        return "" if UNSAID in str(error) else f"run: {error}"
    named = zip((info.name for info in session.get_outputs()), values, strict=True)
    tensors: dict[str, Any] = {name: value for name, value in named if isinstance(value, np.ndarray)}
    np.savez(
        outputs, **{name: value.astype(str) if value.dtype == object else value for name, value in tensors.items()}
    )
    return ""


if __name__ == "__main__":
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    for file, inputs, outputs in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        print(json.dumps([file, why_not(onnxruntime, file, inputs, outputs)]), flush=True)
