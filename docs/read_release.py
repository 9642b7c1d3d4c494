"""What one wheel of ONNX Runtime says of itself, as JSON on stdout; make_releases.py runs it beside the wheel.

As a program: `python docs/read_release.py FOLDER`: the models in FOLDER (*.onnx) are run with ones as their inputs, and
those named that are refused or give anything but ones. Needs nothing but onnxruntime and numpy, from 1.16 on.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


def read_release(folder: Path) -> dict[str, Any]:
    """Schemas with attributes (defaults as the bytes of AttributeProto, in hexadecimal) and kernels of the CPU."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    onnxruntime.set_default_logger_severity(4)
    schemas = [
        {
            "domain": schema.domain,
            "operator": schema.name,
            "since": schema.since_version,
            "inputs": [[value.name, value.typeStr] for value in schema.inputs],
            "outputs": [[value.name, value.typeStr] for value in schema.outputs],
            "arity": [schema.min_input, schema.max_input, schema.min_output, schema.max_output],
            "attributes": {name: row._default_value.hex() for name, row in schema.attributes.items()},
            "deprecated": schema.deprecated,
        }
        for schema in state.get_all_operator_schema()
    ]
    kernels = [
        [kernel.domain, kernel.op_name, *kernel.version_range, kernel.type_constraints]
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
    ]
    trials = sorted(folder.glob("*.onnx"))
    if not trials:  # none refused would be said to be all taken
        sys.exit(f"{folder}: no models to try")
    refused = [model.stem for model in trials if not _in_a_child(onnxruntime, model)]
    return {"version": onnxruntime.__version__, "schemas": schemas, "kernels": kernels, "refused": refused}


def _in_a_child(onnxruntime: Any, model: Path) -> bool:
    """Whether a model computes, in a process of its own, which some end."""
    child = os.fork()
    if not child:
        os._exit(0 if _computes(onnxruntime, model) else 1)
    return os.waitpid(child, 0)[1] == 0


def _computes(onnxruntime: Any, model: Path) -> bool:
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        ones = {value.name: np.ones(value.shape, KINDS[value.type]) for value in session.get_inputs()}
        (result,) = session.run(None, ones)
    except Exception:  # noqa: BLE001 -- its own kinds, which differ by release
        return False
    return bool(np.allclose(result, 1, atol=0.01))


if __name__ == "__main__":
    json.dump(read_release(Path(sys.argv[1])), sys.stdout)
