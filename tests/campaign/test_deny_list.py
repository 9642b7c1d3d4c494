"""`ort-mobile perf --blame` finds what crashes, and neither it nor a campaign tries that again on such devices."""

import json
from pathlib import Path

import msgspec
import pytest

from device_runner.device import OPENERS, DeviceFacts, Waiting
from device_runner.options import Denied
from device_runner.result import FailureKind
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.denied import known_denied
from pipeline.campaign.plan import plan_runs
from pipeline.config import RunConfig
from tests.command import ort_mobile
from tests.configs import BASIC, EVERY
from tests.scripted_devices import ARTIFACT, ScriptedDevice

EXAMPLE = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist" / "mnist.onnx"
FACTS = DeviceFacts(name="told:x", platform="android", soc="Chip 9", api_level=30, abis=("arm64-v8a",))


class BadDriver(ScriptedDevice):
    """Crashes on two settings together, whatever else is set."""

    def __init__(self) -> None:
        super().__init__("told:x", self.crash)
        self.runs = 0

    def facts(self) -> DeviceFacts:
        return FACTS

    def crash(self, spec: RunSpec) -> FailureKind | None:
        self.runs += 1
        guilty = {"session.a", "session.b"} <= set(spec.options.session_config)
        return FailureKind.CRASH if guilty else None


device = BadDriver()


def open_told(_: str, _waiting: Waiting) -> BadDriver:
    return device


@pytest.fixture(autouse=True)
def bad_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(OPENERS, "told", f"{__name__}:open_told")
    monkeypatch.setenv("ORT_MOBILE_STATE", str(tmp_path))
    monkeypatch.setattr(device, "runs", 0)


def perf(*more: str) -> tuple[int, str]:
    settings = [word for key in "abc" for word in ("--session-config", f"session.{key}=1")]
    arguments = [str(EXAMPLE), "--device", "told:x", "--threads", "2", "--rounds", "1", *settings, *more]
    ended = ort_mobile("perf", *arguments, code=None)
    return ended.code, ended.text


def test_the_smallest_part_is_denied_and_not_tried_again(tmp_path: Path) -> None:
    code, said = perf("--blame")
    assert code == 1
    assert "denied from now on: cpu+session.a=1+session.b=1 on Chip 9" in said
    (entry,) = json.loads((tmp_path / "denied.json").read_text())
    assert entry["options"]["session_config"] == {"session.a": "1", "session.b": "1"}
    assert entry["options"].get("intra_op_threads", 0) == 0

    runs = device.runs
    code, said = perf()
    assert code == 1
    assert device.runs == runs
    assert "crash on Chip 9, API level 30" in " ".join(said.split())


def test_campaigns_skip_what_is_denied() -> None:
    perf("--blame")
    artifact = ARTIFACT
    guilty = RunConfig(session_config={"session.a": "1", "session.b": "1", "session.z": "1"})
    lanes, skipped = plan_runs([RunConfig(), guilty], [artifact], [FACTS], known_denied())
    assert [lane.options for lane in lanes] == [RunOptions()]
    assert "crash on Chip 9" in skipped[0].text
    other = msgspec.structs.replace(FACTS, soc="Chip 8")
    assert len(plan_runs([guilty], [artifact], [other], known_denied())[0]) == 1


def test_without_the_option_nothing_is_denied(tmp_path: Path) -> None:
    assert perf()[0] == 1
    assert not (tmp_path / "denied.json").exists()


def test_a_crash_that_does_not_come_again_denies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = iter([FailureKind.CRASH])
    monkeypatch.setattr(device, "_script", lambda _: next(kinds, None))
    perf("--blame")
    assert not (tmp_path / "denied.json").exists()
    assert known_denied() == list[Denied]()


CONFIG = f"""
name = "blamed"
devices = ["told:x"]
[[models]]
path = "{EXAMPLE}"
{BASIC}{EVERY}
threads = [0, 2]
session_config = {{ "session.a" = "1", "session.b" = ["0", "1"] }}
[measure]
rounds = 2
"""


def campaign(folder: Path, *more: str) -> tuple[int, str]:
    (folder / "blamed.toml").write_text(CONFIG)
    arguments = [str(folder / "blamed.toml"), "--output", str(folder / "out"), *more]
    ended = ort_mobile("run", *arguments, code=None)
    return ended.code, ended.text


def crash_on_b(spec: RunSpec) -> FailureKind | None:
    return FailureKind.CRASH if spec.options.session_config.get("session.b") == "1" else None


@pytest.mark.long
def test_a_campaign_blames_on_request_also_after_the_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_script", crash_on_b)
    assert "denied" not in campaign(tmp_path)[1]
    assert known_denied() == list[Denied]()

    said = campaign(tmp_path, "--resume", "--blame")[1]
    assert said.count("denied from now on: cpu+session.b=1 on Chip 9 (") == 1
    (entry,) = known_denied()
    assert (entry.options.session_config, entry.model_sha256) == ({"session.b": "1"}, None)

    said = " ".join(campaign(tmp_path, "--blame")[1].split())
    assert "told:x / mnist / basic-fixed / cpu+session.a=1+session.b=1" in said
    assert "told:x / mnist / basic-fixed / cpu+threads=2+session.a=1+session.b=1" in said
    assert "crash on Chip 9, API level 30" in said
    assert len(known_denied()) == 1


def test_a_provider_that_crashes_alone_is_denied_for_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_script", lambda _: FailureKind.CRASH)
    perf("--provider", "nnapi", "--blame")
    (entry,) = known_denied()
    assert entry.options == RunOptions(provider="nnapi")
    artifact = ARTIFACT
    same = msgspec.structs.replace(artifact, model="n", sha256=entry.model_sha256)
    lanes, skipped = plan_runs([RunConfig(provider="nnapi")], [artifact, same], [FACTS], known_denied())
    assert [lane.sha256 for lane in lanes] == [artifact.sha256]
    assert [skip.model for skip in skipped] == [same.model]
