"""What one wheel of ONNX Runtime says of itself, as JSON on stdout; make_releases.py runs it beside the wheel.

As a program: `python docs/read_release.py FOLDER`: the models in FOLDER (*.onnx) are loaded, and those that are refused
named. Needs nothing but onnxruntime and numpy, of any release from 1.16 on.
"""

import json
import sys
from pathlib import Path
from typing import Any


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
    refused = [model.stem for model in sorted(folder.glob("*.onnx")) if not _loads(onnxruntime, model)]
    return {"version": onnxruntime.__version__, "schemas": schemas, "kernels": kernels, "refused": refused}


def _loads(onnxruntime: Any, model: Path) -> bool:
    try:
        onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 -- its own kinds, which differ by release
        return False
    return True


if __name__ == "__main__":
    json.dump(read_release(Path(sys.argv[1])), sys.stdout)
