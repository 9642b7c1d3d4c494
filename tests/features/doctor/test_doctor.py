"""`ort-mobile doctor` on real models with the real probe: every check has its finding, bad input costs nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import RunOptions
from pipeline.campaign.store import open_store
from pipeline.config import MeasureConfig
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.progress import NoProgress
from pipeline.features.doctor.checks import CHECKS
from pipeline.features.doctor.diagnose import diagnose
from pipeline.features.doctor.diagnosis import parts
from pipeline.features.doctor.finding import Outcome
from pipeline.job.file_runs import PerfOrder
from pipeline.report.wording import markdown
from tests.command import ort_mobile
from tests.job.test_job import EXAMPLE

SHORT = MeasureConfig(min_runs=3, min_seconds=0.001, warmup=0)


def order(model: Path, **dimensions: int) -> PerfOrder:
    return PerfOrder(
        files=(model,), options=(RunOptions(),), device="local", library=None, dimensions=dimensions, measure=SHORT
    )


def channels_last(path: Path) -> Path:
    """Convs between Transposes and Casts, weights that are inputs, a dynamic batch."""
    random = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    nodes, weights, inputs, last = [], [], [value("x", TensorProto.FLOAT, ["n", 8, 8, 4])], "x"
    for layer in range(2):
        weights.append(numpy_helper.from_array(random.normal(size=(4, 4, 3, 3)).astype(np.float32), f"w{layer}"))
        inputs.append(value(f"w{layer}", TensorProto.FLOAT, [4, 4, 3, 3]))
        nodes += [
            helper.make_node("Transpose", [last], [f"t{layer}"], perm=[0, 3, 1, 2]),
            helper.make_node("Conv", [f"t{layer}", f"w{layer}"], [f"c{layer}"], pads=[1] * 4),
            helper.make_node("Transpose", [f"c{layer}"], [f"u{layer}"], perm=[0, 2, 3, 1]),
            helper.make_node("Softmax", [f"u{layer}"], [f"s{layer}"], axis=1),
        ]
        last = f"s{layer}"
    outputs = [value(last, TensorProto.FLOAT, ["n", 8, 8, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.long
@pytest.mark.parametrize("minutes", [0.001, 60.0])
def test_every_check_has_a_finding_however_short_the_time(
    tmp_path: Path, minutes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.features.doctor.diagnose.MOST", 5)
    model = channels_last(tmp_path / "layouts.onnx")
    report = diagnose([order(model)], NoProgress(), minutes=minutes)
    (one,) = report.diagnoses
    assert (one.failure, report.exit_code) == ((), 0)
    found = {finding.code: finding for finding in one.findings}
    assert list(found) == [check.code for check, _ in CHECKS]
    for check in ("initializers", "dimensions", "ort-format", "threads", "spinning", "denormals"):
        assert found[check].measured, check
        assert not any("output" in remedy.why for remedy in found[check].measured), found[check]
    assert found["dimensions"].measured[0].commands == (
        "ort-mobile transform layouts.onnx layouts.changed.onnx --do 'fixed-dimensions:sizes=n=1'",
    )
    (threads, *_) = found["threads"].measured
    assert (threads.set, threads.calls) == (("[[runs]]", "threads = 1"), ("options.SetIntraOpNumThreads(1);",))
    if minutes < 1:
        assert "too short for 5 rounds: give --minutes" in one.notes[0]
        assert {finding.outcome for finding in one.findings} <= {*Outcome} - {Outcome.GAIN, Outcome.NO_GAIN}
        assert one.together is None
    else:
        assert all(remedy.rounds >= 5 for finding in one.findings for remedy in finding.measured)
        assert one.start is not None
        assert one.start.rounds >= 5
    text = markdown("Diagnosis", parts(report))
    assert "layouts.onnx" in text
    assert all(check.title in text for check, _ in CHECKS)


@pytest.mark.long
def test_the_command_starts_as_a_config_says_and_a_broken_model_costs_no_other(tmp_path: Path) -> None:
    import jsonschema  # late: beside the linters of `extra_tests`, which bring it a grammar, it takes 1.6 s

    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07no model")
    (tmp_path / "c.toml").write_text(f"""
name = "two"
[[models]]
path = "broken.onnx"
[[models]]
path = "{EXAMPLE / "mnist.onnx"}"
test_data = "{EXAMPLE}"
[[runs]]
threads = [1, 2]
session_config = {{ "session.record_ep_graph_assignment_info" = "1" }}
[measure]
min_runs = 3
min_seconds = 0.001
""")
    ended = ort_mobile(
        "doctor",
        tmp_path / "c.toml",
        "--minutes",
        "0.01",
        "--json",
        tmp_path / "d.json",
        "--output",
        tmp_path / "out",
        code=1,
    )
    document = json.loads((tmp_path / "d.json").read_text())
    schema = Path(__file__).resolve().parents[3] / "docs" / "doctor.schema.json"
    jsonschema.validate(document, json.loads(schema.read_text()))
    assert document["version"] == 1
    diagnosed, broken = document["diagnoses"]
    assert broken["failure"]
    assert "not diagnosed" in ended.out
    assert diagnosed["start"]["run"] == "cpu+threads=1+session.record_ep_graph_assignment_info=1"
    found = {finding["check"]: finding for finding in diagnosed["findings"]}
    assert [one["run"] for one in found["diagnostics"]["measured"]] == ["cpu+threads=1"]
    assert "nobody to wait for" in found["spinning"]["text"]


def test_an_ort_file_is_diagnosed_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ort_mobile("convert", EXAMPLE / "mnist.onnx", "--output", out, "--level", "all", "--style", "fixed")
    (file,) = out.glob("*.ort")
    report = diagnose([order(file)], NoProgress(), minutes=0.001)
    (one,) = report.diagnoses
    found = {finding.code: finding for finding in one.findings}
    assert one.failure == ()
    assert found["mapping"].measured[0].rounds == 1
    assert "was chosen when it was converted" in found["level"].what


@pytest.mark.parametrize(("name", "content", "error"), [
    ("gone.onnx", None, ConfigError), ("text.onnx", b"hello", ModelError), ("model.bin", b"x", ConfigError),
])  # fmt: skip
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, content: bytes | None, error: type[Exception]) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error):
        diagnose([order(tmp_path / name)], NoProgress())


def test_a_wrong_option_of_the_only_model_is_a_wrong_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no open dimension 'q'"):
        diagnose([order(EXAMPLE / "mnist.onnx", q=3)], NoProgress())
    with pytest.raises(ConfigError, match="folder"):
        diagnose([order(tmp_path)], NoProgress())


@pytest.mark.usefixtures("no_adb")
def test_a_device_that_is_not_there_has_its_exit_code() -> None:
    ended = ort_mobile("doctor", EXAMPLE / "mnist.onnx", "--device", "adb:nowhere@127.0.0.1:1", code=3)
    assert "remedy" in ended.err


def test_the_list_needs_no_model() -> None:
    ended = ort_mobile("doctor", "--list")
    assert [line.split()[0] for line in ended.out.splitlines()] == [check.code for check, _ in CHECKS]


def stored_rounds(folder: Path) -> dict[tuple[str, str, int], str]:
    """Campaign, planned run and round of every stored run, with when it began."""
    if not (folder / "results.sqlite").is_file():
        return {}
    with open_store(f"sqlite:///{folder / 'results.sqlite'}") as store:
        runs = [run for one in store.campaigns() for run in store.runs(one.id)]
    return {(run.campaign, run.planned, run.round): run.result.started_at for run in runs}


@pytest.mark.slow
def test_a_killed_diagnosis_goes_on(tmp_path: Path) -> None:
    channels_last(tmp_path / "layouts.onnx")
    out, config = tmp_path / "out", tmp_path / "layouts.toml"
    config.write_text("""
name = "layouts"
models = [{ path = "layouts.onnx" }]
runs = [{ provider = "cpu" }]
measure = { min_runs = 3, min_seconds = 0.001 }
""")
    line = [sys.executable, "-m", "pipeline", "doctor", str(config), "--output", str(out)]
    with subprocess.Popen(
        [*line, "--minutes", "5"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as job:
        while job.poll() is None and not any(number for _, _, number in stored_rounds(out)):
            time.sleep(0.2)
        assert job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
    kept = stored_rounds(out)
    done = ort_mobile("doctor", str(config), "--output", str(out), "--minutes", "0.01", "--resume", "--json", "-")
    now = stored_rounds(out)
    assert kept.items() <= now.items(), "what was measured is kept, and not measured again"
    (one,) = json.loads(done.out)["diagnoses"]
    assert one["start"]["rounds"] >= max(number for _, _, number in kept)
    assert (one["start"]["rounds"] < 5) == any("too short" in note for note in one["notes"])
    assert len({campaign for campaign, *_ in kept}) == 1
    ort_mobile("doctor", str(config), "--output", str(out), "--minutes", "0.01", "--json", "-")
    assert len({campaign for campaign, *_ in stored_rounds(out)}) > len({campaign for campaign, *_ in now})
