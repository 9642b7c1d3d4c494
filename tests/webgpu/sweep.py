"""What WebGPU computes, by running it: one-operator models, ONNX's own tests, variants of Conv, chains, random graphs.

`python -m tests.webgpu.sweep [SET...] [--table FILE]` (`nox -s webgpu_sweep`): each model runs in the plugin of the
package onnxruntime-ep-webgpu on a software Vulkan driver, as an .onnx file in an app's session (all levels)
and as an ORT format file of level basic, in NHWC and NCHW, beside the CPU at level none. What our rules refuse is not
run, but with --refused. Exit status 1 where a file that nothing refuses fails, crashes or computes something else. A
driver or a shader may end the process, so that models run in one of their own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from device_runner.vulkan import ADAPTER, find_driver, vulkan_environment
from pipeline.compat.gpu import gpu_findings
from pipeline.core.releases import Release
from pipeline.partition.answer import Settings, webgpu_settings
from pipeline.partition.claiming import claim
from pipeline.partition.file_graph import view_of_file
from tests.android_host.runs import DIMENSIONS
from tests.command import ort_mobile
from tests.webgpu.sweep_models import NODE_TEST, models

SETS = ("convs", "chains", "nodes", "ops", "dags")
LAYOUTS = ("NHWC", "NCHW")
FORMS = ("onnx", "ort", "aware")
"""An ONNX file; one in ORT format of level basic; of chains that made for WebGPU (`convert --ep webgpu`), too."""
PLACES = tuple(f"{form} {layout}" for form in FORMS for layout in LAYOUTS)
TOLERANCE = 1e-3
"""Relative to the largest value of an output."""
UNEQUAL = 0.01
"""So large a share of integers and bools may differ: a tie that rounding decides."""
RELEASE = Release(1, 29)
BAD = ("differs", "fails", "crashes")
UNCERTAIN = ("random", "bernoulli", "multinomial", "dropout")
"""Parts of names of models whose outputs are drawn."""
OPEN_DIMENSION = 2


class Ran(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a model in a form and layout; `rules` refuse it, `taken` are operators on the GPU."""

    model: str
    place: str
    verdict: str
    text: str = ""
    rules: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


def ran(listed: Mapping[str, Path], options: Sequence[str]) -> Iterator[Ran]:
    """What became of each model in every form and layout; one that ends the process has that as its verdict."""
    waiting = [
        (name, path, place) for name, path in listed.items() for place in PLACES
        if not place.startswith("aware") or name.startswith("chain")
    ]  # fmt: skip
    environment = os.environ | ADAPTER | vulkan_environment(find_driver()) | {"ORT_DISABLE_TELEMETRY": "1"}
    while waiting:
        done = 0
        with tempfile.TemporaryFile("w+") as asked:
            asked.write("".join(f"{name}\t{path}\t{place}\n" for name, path, place in waiting))
            asked.seek(0)
            with subprocess.Popen(
                [sys.executable, "-m", "tests.webgpu.sweep", "--child", *options],
                stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            ) as child:  # fmt: skip
                assert child.stdout is not None
                for line in child.stdout:
                    yield msgspec.json.decode(line, type=Ran)
                    done += 1
        if done < len(waiting):
            name, _, place = waiting[done]
            yield Ran(name, place, "crashes", f"status {child.returncode}")
        waiting = waiting[done + 1 :]


def answer(out: Any, *, refused: bool) -> None:
    """Run what the standard input lists."""
    import onnxruntime
    from onnxruntime_ep_webgpu import get_library_path  # type: ignore[import-not-found,import-untyped,unused-ignore]

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.register_execution_provider_library("webgpu", get_library_path())
    devices = [row for row in onnxruntime.get_ep_devices() if row.ep_name == "WebGpuExecutionProvider"]
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            name, path, place = line.rstrip("\n").split("\t")
            try:
                row = _ran(name, Path(path), place, devices, Path(folder), refused=refused)
            except Exception as problem:  # noqa: BLE001 - whatever a hostile model raises is what became of it
                row = Ran(name, place, "no model", f"{type(problem).__name__}: {problem}"[:200])
            out.write(msgspec.json.encode(row) + b"\n")


def _ran(name: str, path: Path, place: str, devices: Any, folder: Path, *, refused: bool) -> Ran:
    import onnxruntime

    form, _, layout = place.partition(" ")
    wanted = {"preferredLayout": layout}
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    cpu = onnxruntime.InferenceSession(str(path), plain, providers=["CPUExecutionProvider"])
    given = inputs_of(path, cpu)
    expected = cpu.run(None, given)
    file = path
    if form != "onnx":
        file = folder / "m.ort"
        saving = onnxruntime.SessionOptions()
        saving.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        saving.optimized_model_filepath = str(file)
        saving.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(str(path), saving, providers=["CPUExecutionProvider"])
    if form == "aware":
        if not any(row.code == "webgpu-memories" for row in gpu_findings(file, RELEASE, wanted, "m", half=False)):
            return Ran(name, place, "not taken", "without copies it is the same file")
        ort_mobile("convert", path, "--level", "basic", "--ep", "webgpu", "--output", folder, code=0)
        file = folder / f"{path.stem}.basic-fixed-webgpu.ort"
    graph = view_of_file(file)
    settings = Settings(provider="webgpu", ort_release=RELEASE, webgpu=webgpu_settings(wanted))
    claimed = claim(graph, settings).claimed
    taken = tuple(sorted({graph.nodes[index].op_type for index in claimed}))
    if not taken:
        return Ran(name, place, "not taken")
    rules = tuple(finding.code for finding in gpu_findings(file, RELEASE, wanted, "m", half=False))
    if rules and not refused:
        return Ran(name, place, "refused", rules=rules, taken=taken)
    ours = onnxruntime.SessionOptions()
    ours.log_severity_level = 4
    ours.add_provider_for_devices(devices[:1], wanted)
    try:
        session = onnxruntime.InferenceSession(str(file), ours, enable_fallback=False)
        session.disable_fallback()
        got = session.run(None, given)
    except Exception as problem:  # noqa: BLE001 - so it fails
        return Ran(name, place, "fails", str(problem)[-240:], rules, taken)
    apart = max((distance(*pair) for pair in zip(expected, got, strict=True)), default=0.0)
    return Ran(name, place, "same" if apart <= 1 else "differs", f"{apart * TOLERANCE:.2g}", rules, taken)


def inputs_of(path: Path, session: Any) -> dict[str, Any]:
    """The inputs of ONNX's own test of an operator, else drawn ones."""
    if path.name != NODE_TEST:
        return {formal.name: _drawn(formal, number) for number, formal in enumerate(session.get_inputs())}
    with np.load(path.with_name("inputs.npz")) as kept:
        return dict(zip((formal.name for formal in session.get_inputs()), kept.values(), strict=True))


def _drawn(formal: Any, seed: int) -> Any:
    drawn = np.random.default_rng(seed)
    shape = [size if isinstance(size, int) else DIMENSIONS.get(size, OPEN_DIMENSION) for size in formal.shape]
    kind = formal.type.removeprefix("tensor(").rstrip(")")
    if kind in ("float", "double", "float16"):
        return drawn.standard_normal(shape).astype({"float": "f4", "double": "f8", "float16": "f2"}[kind])
    if kind == "bool":
        return drawn.integers(0, 2, shape).astype(bool)
    return drawn.integers(0, 200 if kind in ("uint8", "int8") else 3, shape).astype(kind)


def distance(expected: Any, got: Any) -> float:
    """How far apart two outputs are, 1 is what passes. What is no number on one side alone is far; shaders may take NaN
    for one, so that what is none on the CPU counts for nothing.
    """
    if not isinstance(expected, np.ndarray) or expected.dtype.kind in "OSU":
        return 0.0
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return float("inf")
    if expected.dtype.kind in "biu":
        return float(np.mean(expected != got)) / UNEQUAL if expected.size else 0.0
    a, b = expected.astype(np.float64), got.astype(np.float64)
    counted = np.isfinite(a)
    if not counted.any():
        return 0.0
    a, b = a[counted], b[counted]
    if not np.isfinite(b).all():
        return float("inf")
    return float(np.abs(a - b).max() / max(float(np.abs(a).max()), 1e-6)) / TOLERANCE


def table(rows: Sequence[Ran]) -> str:
    """Verdicts by form and layout, then what nothing refuses and is wrong, by operator."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.place][row.verdict] += 1
    verdicts = ("same", "refused", *BAD, "not taken", "no model")
    lines = ["| form, layout | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 1) + "|"]
    lines += [
        f"| {place} | " + " | ".join(str(counts[place][verdict]) for verdict in verdicts) + " |" for place in PLACES
    ]
    bad: dict[tuple[str, str], list[Ran]] = defaultdict(list)
    for row in rows:
        if row.verdict in BAD and not row.rules:
            bad[row.model.partition("/")[0] if not row.model.startswith("node/") else row.model, row.verdict].append(
                row
            )
    lines += ["", "| models | verdict | forms and layouts | one of them |", "|---|---|---|---|"]
    for (family, verdict), members in sorted(bad.items()):
        places = ", ".join(dict.fromkeys(row.place for row in members))
        text = members[0].text.replace("\n", " ").replace("|", "/")[-120:]
        lines.append(
            f"| {family} ({len({row.model for row in members})}) | {verdict} | {places} | {members[0].model}: {text} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the sets; 1 where something that nothing refuses is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--only", default="", help="a part of the names of models")
    parser.add_argument("--skip", nargs="*", default=[], help="parts of the names of models that are left out")
    parser.add_argument("--every", type=int, default=1, help="each so manieth model of a set")
    parser.add_argument("--refused", action="store_true", help="run what the rules refuse, too")
    parser.add_argument("--rows", type=Path, help="where each answer goes, as it comes")
    parser.add_argument("--table", type=Path, help="where the tables go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        answer(out, refused=chosen.refused)
        return 0
    rows: list[Ran] = []
    with tempfile.TemporaryDirectory() as folder:
        listed = {
            name: path for name, path in models(chosen.sets, Path(folder))
            if chosen.only in name and not any(word in name for word in (*UNCERTAIN, *chosen.skip))
        }  # fmt: skip
        listed = dict(list(listed.items())[:: chosen.every])
        for row in ran(listed, ["--refused"] * chosen.refused):
            rows.append(row)
            if row.verdict in BAD and not row.rules:
                print(f"{row.model} {row.place} {row.verdict}: {row.text}", flush=True)
            if chosen.rows:
                with chosen.rows.open("ab") as kept:
                    kept.write(msgspec.json.encode(row) + b"\n")
    text = table(rows)
    if chosen.table:
        chosen.table.write_text(text, "utf-8")
    print(text)
    return int(any(row.verdict in BAD and not row.rules for row in rows))


if __name__ == "__main__":
    sys.exit(main())
