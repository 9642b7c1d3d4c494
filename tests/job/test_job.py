"""The whole job as a user runs it, on the example and on models that go wrong."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import own_home
from tests.command import ort_mobile, stored_runs
from tests.configs import DESK, EVERY, MNIST, PHONE, short
from tests.signals import PYTHON_THAT_HEARS

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "build_configs" / "examples" / "mnist"
CONFIG = f"""
name = "demo"
{MNIST}
labels = "{EXAMPLE / "evaluation.npz"}"
{PHONE}{DESK}
[variants]
levels = ["none", "basic", "extended"]
[[runs]]
provider = "nnapi"
variants = ["basic-*"]
{EVERY}{short(2, 400)}
"""


PROGRESS = re.compile(r"(convert|reference|check|predict|measure): |about .* in all: ")


def write_config(folder: Path, text: str = CONFIG) -> Path:
    path = folder / "demo.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one whole job."""
    folder = tmp_path_factory.mktemp("job")
    ended = ort_mobile("run", write_config(folder), "--output", folder / "out")
    assert "this library has no nnapi; it has: cpu; NNAPI needs a phone" in ended.out
    assert "What ships" in ended.out
    return folder / "out"


def test_it_leaves_artifacts_configs_reports_database_and_bundle(done: Path) -> None:
    names = {path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file()}
    variants = [f"{level}-{style}" for level in ("none", "basic", "extended") for style in ("fixed", "runtime")]
    wanted = {f"artifacts/mnist.{variant}.ort" for variant in variants}
    wanted |= {"report.html", "report.md", "trace.json.gz", "results.json", "results.sqlite", "bundle/manifest.json"}
    wanted |= {"required_operators.config", "required_operators_and_types.config"}
    assert wanted <= names
    assert not [name for name in names if name.endswith(".part") or ".work" in name]


def test_every_run_is_compared_with_the_original_model(done: Path) -> None:
    rows = json.loads((done / "results.json").read_text())["rows"]
    assert len(rows) == 6
    same = {row["variant"]: row["same_as"] for row in rows if row["same_as"]}
    assert same == {"none-runtime": "none-fixed/cpu", "basic-runtime": "basic-fixed/cpu"}
    for row in rows:
        (check,) = row["checks"]
        assert check["passed"]
        assert check["max_rel_error"] < 1e-5
        assert check["top1_agreement"] == 1.0
        assert row["statistics"]["samples"] >= 6


def test_percentiles_are_those_of_the_latencies_that_are_kept(done: Path) -> None:
    """The smallest latency that so many in a hundred do not exceed, counted here from the database's own columns."""
    with contextlib.closing(sqlite3.connect(done / "results.sqlite")) as database:
        kept = database.execute(
            "SELECT planned, samples, nanoseconds FROM runs JOIN latencies ON run_id = runs.id"
        ).fetchall()
    rounds: dict[str, list[int]] = {}
    for planned, samples, packed in kept:
        rounds.setdefault(planned, []).extend(struct.unpack(f"<{samples}q", packed))
    counted = []
    for latencies in map(sorted, rounds.values()):
        row = {
            f"p{share}_ns": latencies[-(-share * len(latencies) // 100) - 1] if len(latencies) >= least else None
            for share, least in ((90, 64), (95, 130), (99, 662))
        }
        counted.append({"samples": len(latencies), "min_ns": latencies[0], "max_ns": latencies[-1], **row})
    told = [row["statistics"] for row in json.loads((done / "results.json").read_text())["rows"] if not row["same_as"]]
    assert len(told) == 4
    assert all({key: row[key] for key in counted[0]} in counted for row in told)


def test_the_documentations_figures_for_mnist(done: Path) -> None:
    artifacts = json.loads((done / "results.json").read_text())["artifacts"]
    operators = {a["variant"]["level"]: a["operators"] for a in artifacts if a["variant"]["style"] == "fixed"}
    assert operators["none"]["ai.onnx:Add"] == 3
    assert operators["none"]["ai.onnx:Reshape"] == 2
    assert operators["basic"] == {
        "ai.onnx:Conv": 2, "ai.onnx:Gemm": 1, "ai.onnx:MaxPool": 2, "ai.onnx:Relu": 2, "ai.onnx:Reshape": 1,
    }  # fmt: skip
    assert operators["extended"]["com.microsoft:FusedConv"] == 2


def test_the_report_names_opsets_and_types_of_what_a_reduced_build_needs(done: Path) -> None:
    required = {one["name"]: one for one in json.loads((done / "results.json").read_text())["required"]}
    config = (done / "bundle/operators/required_operators_and_types.config").read_text()
    assert {name.partition(":")[2] for name in required} == set(re.findall(r"([A-Z][A-Za-z]+)(?=[{,\n])", config))
    assert required["ai.onnx:MaxPool"]["types"] == ["input 0: float"]
    assert f"ai.onnx;{required['ai.onnx:MaxPool']['opsets'][0]};" in config
    assert ">input 0: float</td>" in (done / "report.html").read_text()


@pytest.mark.long
def test_reports_and_bundle_can_be_made_again_from_what_is_stored(done: Path) -> None:
    before = (done / "results.json").read_bytes()
    ort_mobile("report", done)
    assert (done / "results.json").read_bytes() == before
    ort_mobile("bundle", "rebuild", done)
    ort_mobile("bundle", "verify", done / "bundle")


@pytest.mark.long
def test_the_same_inputs_give_the_same_bytes_anywhere(tmp_path: Path) -> None:
    digests = set()
    places = {"one": ("UTC", "C"), "the other": ("Asia/Tokyo", "C.UTF-8")}
    for number, (name, (zone, locale)) in enumerate(places.items()):
        folder = tmp_path / name
        folder.mkdir()
        old = os.umask(0o022 if number else 0o077)
        try:
            own_home.link(cache := tmp_path / f"cache {number}")
            ended = ort_mobile(
                "run", write_config(folder), "--output", folder / "out", "--convert-only",
                process=True, ORT_MOBILE_CACHE=str(cache), TZ=zone, LC_ALL=locale,
            )  # fmt: skip
        finally:
            os.umask(old)
        assert ended.code == 0, ended.err
        digests.add(ort_mobile("bundle", "verify", folder / "out" / "bundle").out.splitlines()[1])
    assert len(digests) == 1
    for path in (tmp_path / "one" / "out" / "artifacts").iterdir():
        assert path.read_bytes() == (tmp_path / "the other" / "out" / "artifacts" / path.name).read_bytes()


@pytest.mark.long
def test_a_model_needs_no_config(tmp_path: Path) -> None:
    ort_mobile("run", "--model", EXAMPLE / "mnist.onnx", "--output", tmp_path / "out", "--convert-only")
    assert (tmp_path / "out" / "bundle" / "models" / "mnist.all-fixed.ort").is_file()


@pytest.mark.long
def test_a_broken_model_costs_no_other(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "mnist.onnx", tmp_path / "good.onnx")
    (tmp_path / "broken.onnx").write_bytes((EXAMPLE / "mnist.onnx").read_bytes()[:5000])
    config = write_config(tmp_path, f'name = "two"\n[[models]]\npath = "{tmp_path}"\n')
    ended = ort_mobile("run", config, "--output", tmp_path / "out", "--convert-only", code=1)
    assert "broken" in ended.out
    assert "cut off or damaged" in ended.out
    assert [p.name for p in (tmp_path / "out" / "bundle" / "models").iterdir()] == ["good.all-fixed.ort"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--device", "toaster"], 2, "unknown device 'toaster'"),
        (["--model", "x.onnx"], 2, "either a config file or --model"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    ended = ort_mobile("run", write_config(tmp_path), "--output", tmp_path / "out", *arguments, code=code)
    assert told in ended.err


def test_an_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = ort_mobile("run", write_config(tmp_path), "--output", tmp_path / "file" / "out", code=2)
    assert "a file stands where a folder is needed" in ended.err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, env={"PATH": os.defpath}, check=False)
    if mounted.returncode:
        pytest.skip("this system does not let root mount a tmpfs")
    try:
        ended = ort_mobile("run", write_config(tmp_path), "--output", disk / "out", code=3)
        rest = [path.name for path in disk.rglob("*") if path.name.endswith(".part") or path.name.startswith(".work")]
    finally:
        subprocess.run(["umount", str(disk)], env={"PATH": os.defpath}, check=True)
    assert ended.code == 3
    assert "disk is full" in ended.err or "No space left on device" in ended.err + ended.out
    assert rest == []


@pytest.mark.long
def test_a_model_that_is_there_again_joins_the_campaign_and_the_others_are_not_measured_anew(tmp_path: Path) -> None:
    second = tmp_path / "second.onnx"
    text = CONFIG.replace("[[targets]]", f'[[models]]\npath = "{second}"\n[[targets]]', 1)
    config = write_config(tmp_path, text)
    second.write_bytes(b"\x08")  # half of it is there
    ort_mobile("run", config, "--output", tmp_path / "out", code=1)
    before = stored_runs(tmp_path)
    assert before == 8
    shutil.copyfile(EXAMPLE / "mnist.onnx", second)
    ort_mobile("run", config, "--output", tmp_path / "out", "--resume")
    with sqlite3.connect(tmp_path / "out" / "results.sqlite") as connection:
        runs = connection.execute("SELECT campaign_id, model FROM runs").fetchall()
    assert len({campaign for campaign, _ in runs}) == 1
    assert sorted(model for _, model in runs) == ["mnist"] * 8 + ["second"] * 8
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert report["failures"] == []
    assert {choice["model"] for choice in report["choices"]} == {"mnist", "second"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGTERM, ("run",)), (signal.SIGINT, ("release", "all"))],
    ids=["SIGTERM", "release"],
)
def test_what_ci_and_terminals_send_ends_a_job_as_ctrl_c_does(
    tmp_path: Path, number: signal.Signals, words: tuple[str, ...]
) -> None:
    kept, command = interrupted(tmp_path, number, words)
    assert kept >= 2
    assert command[: 1 + len(words)] == ["ort-mobile", *words]
    assert command[-1] == "--resume"


@pytest.mark.long
def test_ctrl_c_keeps_what_was_measured_and_the_command_that_it_names_completes_it(tmp_path: Path) -> None:
    kept, command = interrupted(tmp_path, signal.SIGINT)
    assert command == ["ort-mobile", "run", str(tmp_path / "demo.toml"), "--output", str(tmp_path / "out"), "--resume"]
    ort_mobile(*command[1:])
    with sqlite3.connect(tmp_path / "out" / "results.sqlite") as connection:
        runs = connection.execute("SELECT campaign_id, spec_id, round FROM runs").fetchall()
    assert len(runs) == len(set(runs)) == 8, "four different files on the CPU in two rounds; there is no NNAPI to run"
    assert len({campaign for campaign, _, _ in runs}) == 1
    assert 2 <= kept < 8


@pytest.mark.long
def test_the_second_ctrl_c_ends_the_run_in_progress_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.replace("min_seconds = 0.001", "min_seconds = 300.0"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    said = tmp_path / "said"

    def until(found: Callable[[], object]) -> None:
        limit = time.monotonic() + 120
        while not found():
            assert time.monotonic() < limit, said.read_text()
            time.sleep(0.05)

    def probes() -> list[str]:
        """Processes that measure for this test: their request lies in its folder for temporary files."""
        listed = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if f"{temporary / 'ort-mobile-run-'}" in line]

    with said.open("wb") as errors:
        job = subprocess.Popen(
            [*PYTHON_THAT_HEARS, "-m", "pipeline", "run", str(config), "--output", str(tmp_path / "out")],
            stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        )  # fmt: skip
    until(lambda: "measure: " in said.read_text() and probes())
    os.killpg(job.pid, signal.SIGINT)
    until(lambda: "Ctrl-C again ends them at once" in said.read_text())
    assert probes(), "the run goes on until the second"
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(120) == 130
    assert probes() == []
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in said.read_text()
    assert stored_runs(tmp_path) == 0


def interrupted(folder: Path, number: signal.Signals, words: tuple[str, ...] = ("run",)) -> tuple[int, list[str]]:
    """Send a signal to a job that has stored two runs: how many it kept, and the command to go on with."""
    config = write_config(
        folder, CONFIG.replace("min_seconds = 0.001", "min_seconds = 0.6") + "[release]\ngates = []\n"
    )
    job = subprocess.Popen(
        [*PYTHON_THAT_HEARS, "-m", "pipeline", *words, str(config), "--output", str(folder / "out")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    while stored_runs(folder) < 2 and job.poll() is None:
        time.sleep(0.05)
    job.send_signal(number)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 130
    kept = stored_runs(folder)
    said = [line for line in errors.decode().splitlines() if line and not PROGRESS.match(line)]
    waits, told, command = said
    assert waits == "interrupted: finishing the runs in progress, for at most 5 min; Ctrl-C again ends them at once"
    assert told == f"interrupted: {kept} of 8 runs are kept; no report and no bundle were written"
    assert not [path for path in (folder / "out").rglob("*") if path.name.startswith(".work")]
    return kept, shlex.split(command.removeprefix("continue with: "))
