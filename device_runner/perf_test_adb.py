"""onnxruntime_perf_test on a device behind adb."""

import re
from pathlib import Path

from device_runner import NO_TELEMETRY
from device_runner.adb.link import Link, LinkTimeout, script
from device_runner.adb.store import DeviceStore, fetch_from
from device_runner.files import keep_files
from device_runner.perf_test import (
    OUTPUT_TAIL_BYTES,
    RESULT_FILE,
    FinishedProcess,
    input_files,
    measured_with,
    model_name,
    text_of,
    tool_of,
)
from device_runner.result import Failure, RunResult, without_measurement
from device_runner.spec import RunSpec

OUTPUT_LIMIT_BYTES = 64 << 20
CSV_LIMIT_BYTES = 64 << 20
CSV_LINE_BYTES = 512
"""The result file: a line for each run, with the name of the run folder in it."""

RUN = f"""
rm -rf "$1" && mkdir -p "$1/test_data_set_0" && cd "$1" || exit 90
shift
while [ "$1" != -- ]; do ln -s "$1" "$2" || exit 91; shift 2; done
shift
exec 3<&0
LD_LIBRARY_PATH=. {NO_TELEMETRY} "$@" </dev/null 3<&- &
run=$!
echo $run > pid
( while read -r line <&3; do :; done; kill -9 $run ) >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait $run
code=$?
kill $watch
for file in profile_*; do [ -f "$file" ] && echo "profile file: $file"; done
exit $code
"""
"""Run folder, pairs of a stored file and its name there, --, the program and its arguments.

The end of standard input is the end of whoever asked: then it is killed. Its exit code is that of the script.
"""

KILL = 'kill -9 "$(cat "$1/pid")"; rm -rf "$1"'


def run_over_adb(
    spec: RunSpec, device: str, link: Link, store: DeviceStore, folder: str, library: Path | None, scratch: Path
) -> RunResult:
    """Execute a spec on a device; `folder` is its run folder there, `scratch` one here. Raises LinkError, OSError."""
    tool = tool_of(spec)
    if isinstance(tool, Failure):
        return without_measurement(spec, device, tool)
    links = [(store.put(Path(spec.model), Path(spec.model).suffix.lower()), model_name(spec))]
    if library and tool.library_name:
        links.append((store.put(library, ".so"), tool.library_name))
    for name, data in input_files(spec):
        path = scratch / Path(name).name
        path.write_bytes(data)
        links.append((store.put(path), name))
    program = store.put(tool.path)
    pairs = [text for pair in links for text in pair]

    def execute(arguments: list[str]) -> FinishedProcess:
        command = script(RUN, folder, *pairs, "--", program, *arguments)
        try:
            output = link.shell(command, seconds=spec.timeout_seconds, limit_bytes=OUTPUT_LIMIT_BYTES)
        except LinkTimeout:
            link.shell(script(KILL, folder), seconds=5.0)
            return FinishedProcess(code=None, stdout="", stderr="")
        text = output.stdout[-OUTPUT_TAIL_BYTES:].decode("utf-8", "replace")
        found = re.findall(r"^profile file: (profile[\w.-]{1,100})$", text, re.MULTILINE)
        return FinishedProcess(
            code=128 - output.code if 128 < output.code < 160 else output.code,
            stdout=text,
            stderr=output.stderr[-OUTPUT_TAIL_BYTES:].decode("utf-8", "replace"),
            csv=_csv(spec, link, f"{folder}/{RESULT_FILE}", scratch / RESULT_FILE) if output.code == 0 else "",
            profile=found[-1] if found else None,
        )

    result = measured_with(spec, device, execute, model_name(spec))
    return keep_files(spec, result, fetch_from(link, folder, result))


def _csv(spec: RunSpec, link: Link, remote: str, path: Path) -> str:
    limit_bytes = max(CSV_LIMIT_BYTES, CSV_LINE_BYTES * spec.min_runs)
    link.pull(remote, path, seconds=60.0, limit_bytes=limit_bytes)
    return text_of(path)
