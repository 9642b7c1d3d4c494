"""onnxruntime_perf_test on this computer, in a folder of links."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from device_runner.files import keep_files
from device_runner.perf_test import (
    OUTPUT_TAIL_BYTES,
    PROFILE_PREFIX,
    RESULT_FILE,
    FinishedProcess,
    input_files,
    measured_with,
    model_name,
    text_of,
    tool_of,
)
from device_runner.process import run_group, tail
from device_runner.result import Failure, RunResult, without_measurement
from device_runner.spec import RunSpec


def run_here(
    spec: RunSpec, device: str, folder: Path, default_library: Path, environment: Mapping[str, str]
) -> RunResult:
    """Execute a spec in a folder of this computer; without a library in the spec, that beside the program goes first.

    Raises OSError.
    """
    tool = tool_of(spec)
    if isinstance(tool, Failure):
        return without_measurement(spec, device, tool)
    beside = tool.path.parent / (tool.library_name or ".none")
    library = Path(spec.library) if spec.library else beside if beside.is_file() else default_library
    (folder / model_name(spec)).symlink_to(Path(spec.model).absolute())
    if tool.library_name:
        (folder / tool.library_name).symlink_to(library.absolute())
    for name, data in input_files(spec):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    def execute(arguments: list[str]) -> FinishedProcess:
        (folder / RESULT_FILE).unlink(missing_ok=True)
        variables = {**os.environ, **environment}
        paths = ":".join(filter(None, (str(folder), variables.get("LD_LIBRARY_PATH"))))
        variables |= {"LD_LIBRARY_PATH": paths, "DYLD_LIBRARY_PATH": paths}
        code = run_group([str(tool.path), *arguments], folder, spec.timeout_seconds, variables, inside=True)
        profiles = sorted(path.name for path in folder.glob(f"{PROFILE_PREFIX}_*.json"))
        return FinishedProcess(
            code=code,
            stdout=tail(folder / "stdout", OUTPUT_TAIL_BYTES),
            stderr=tail(folder / "stderr", OUTPUT_TAIL_BYTES),
            csv=text_of(folder / RESULT_FILE),
            profile=profiles[-1] if profiles else None,
        )

    result = measured_with(spec, device, execute, model_name(spec))
    return keep_files(spec, result, lambda name, path, _: shutil.move(folder / name, path))
