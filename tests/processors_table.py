"""Which processors run which operators in which Android release, as a table: `nox -s processors_table`.

As a program: `python -m tests.processors_table [RELEASE ...]`. Every release's arm64-v8a library runs a model of one
operator each on every processor of `prove --cpu all`, and on one that announces SME and has none, as `prove` does; the
columns of extensions are what `library show` reads from the library's code. Exit status 3 where no library can be had.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from device_runner.errors import RunnerError
from device_runner.host_device import common_cpus
from device_runner.library import resolve
from pipeline.core.abis import ARM64
from pipeline.library.fetch import get_library
from pipeline.library.kernels import read_arm_code
from tests.npm_packages import ACCEPT
from tests.ort_models import parsed

RELEASES = ("1.26.0", "1.28.0", "1.29.0")
TRAPS = "sme-traps"
RANDOM = np.random.default_rng(0)


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model in ONNX's text form, with constant tensors."""
    made = parsed(text)
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return made


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


MODELS = {
    "Add": model("g (float[8, 64] x) => (float[8, 64] y) { y = Add (x, w) }", w=floats(8, 64)),
    "Conv": model(
        "g (float[1, 16, 16, 16] x) => (float[1, 24, 16, 16] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
        w=floats(24, 16, 3, 3),
    ),
    "MatMul": model("g (float[32, 64] x) => (float[32, 48] y) { y = MatMul (x, w) }", w=floats(64, 48)),
    "MatVec": model("g (float[1, 256] x) => (float[1, 10] y) { y = MatMul (x, w) }", w=floats(256, 10)),
    "MatMulInteger": model(
        """g (float[8, 64] x) => (float[8, 48] y)
        { q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z) f = Cast <to = 1> (i) y = Mul (f, s) }""",
        w=RANDOM.integers(-127, 127, (64, 48)).astype(np.int8),
    ),
}
CONFIG = """name = "processors"
devices = ["local"]

[variants]
levels = ["basic"]
styles = ["fixed"]

[[targets]]
name = "android-arm64"
platform = "android"
abis = ["arm64-v8a"]
min_api_level = 27
ort_release = "{release}"

[[runs]]
provider = "cpu"
"""


def pipeline(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of ours, in its own process; its log is shown."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words], cwd=cwd, stdout=subprocess.PIPE, text=True, check=False
    )


def results(folder: Path, file: Path, release: str) -> dict[tuple[str, str], str]:
    """What became of each model on each processor."""
    config, output = folder / f"{release}.toml", f"run-{release}"
    models = "".join(f'\n[[models]]\npath = "{name}.onnx"\n' for name in MODELS)
    config.write_text(CONFIG.format(release=release.rpartition(".")[0]) + models)
    pipeline("run", config.name, "--convert-only", "--output", output, cwd=folder)
    answers: dict[tuple[str, str], str] = {}
    for cpu in ("all", TRAPS):
        words = ("--library", str(file), "--abi", ARM64, "--cpu", cpu, "--api-level", "31", "--json", "-")
        proof = json.loads(pipeline("prove", f"{output}/bundle", *words, cwd=folder).stdout)
        for row in proof["rows"]:
            kinds = [finding["kind"] for finding in row["findings"] if finding["severity"] == "error"]
            answers[row["model"], row["cpu"]] = ", ".join(dict.fromkeys(kinds)) if row["failed"] else "passes"
    return answers


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    rows = [("release", "operator", "processor", "result")]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for name, made in MODELS.items():
            onnx.save(made, folder / f"{name}.onnx")
        for release in parser.parse_args().releases:
            try:
                file = Path(get_library(f"android:{release}", accept_licence=bool(os.environ.get(ACCEPT))).file)
                code = read_arm_code(resolve(str(file), ARM64).path.read_bytes())
            except RunnerError as error:
                print(f"no library: {error}", file=sys.stderr)
                return 3
            holds = ", ".join(f"{row.extension} {row.functions}" for row in code.extensions)
            print(f"{release} has functions of {holds}", flush=True)
            answers = results(folder, file, release)
            cpus = [*common_cpus(ARM64), TRAPS]
            for name in MODELS:
                tried = [(answers[name, cpu], cpu) for cpu in cpus if (name, cpu) in answers]
                for answer, group in groupby(tried, key=lambda row: row[0]):
                    rows.append((release, name, ", ".join(cpu for _, cpu in group), answer))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
