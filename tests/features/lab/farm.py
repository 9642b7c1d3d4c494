"""A lab in one process: agents as threads, devices that only sleep and are seen by all of them, a journal of starts."""

import hashlib
import itertools
import json
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from device_runner.device import DeviceFacts, Waiting, identity, no_waiting
from device_runner.result import Failure, FailureKind, RunResult, Status, utc_now, without_measurement
from device_runner.spec import ElementType, RunSpec, TensorFile
from pipeline.campaign.plan import in_modes, plan_runs, recorded
from pipeline.campaign.record import CampaignRecord, Host, JobRecord, ModelFacts
from pipeline.campaign.store import Store
from pipeline.check.compare import OutputPrecision
from pipeline.check.result import Reference
from pipeline.config import Config, MeasureConfig, ModelConfig, OutputConfig, RunConfig
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.features.lab.agent import work
from pipeline.features.lab.campaigns import lab_versions, most_runs
from pipeline.features.lab.checks import set_golden
from pipeline.features.lab.content import keep_files
from pipeline.features.lab.queue import LabSession, jobs_of, submit_jobs
from pipeline.features.lab.tables import hosts
from tests.scripted_devices import ScriptedDevice, latencies_of

FILE = b"what an artifact would be" * 100_000
"""Of more than one part."""

GOLDEN_FILE = "golden.ort"

NOISE: dict[str, list[int]] = {
    name: [min(pair) for pair in itertools.pairwise(values)]
    for name, values in json.loads(Path(__file__).with_name("noise.json").read_text())["values_ns"].items()
}
"""Values of groups of six processes, by model: the file has those of three, and says how they were recorded."""

RECORDED = [value for value in NOISE["conv"] if value < 1.42e6]
"""Of these the ones that no other work slowed."""

LONG_SECONDS = 600.0
"""For what must happen, however slow and busy a computer is: tests wait for it, and for no time."""

SCHEME, SECONDS, JOURNAL = "rig", "RIG_SECONDS", "RIG_JOURNAL"


def open_rig(rest: str, _waiting: Waiting = no_waiting) -> ScriptedDevice:
    """The device `rig:REST`."""
    journal = os.environ.get(JOURNAL)
    return (GoldenRig if HEALTH in os.environ else ScriptedDevice)(
        f"{SCHEME}:{rest}", seconds=float(os.environ.get(SECONDS, "0.05")), journal=Path(journal) if journal else None
    )


def rigs(count: int) -> tuple[str, ...]:
    return tuple(f"{SCHEME}:{number}" for number in range(count))


def shared_identity(facts: DeviceFacts) -> str:
    """A rig keeps its name at every host, as a phone on the network does."""
    return facts.name if facts.name.startswith(f"{SCHEME}:") else identity(facts)


def made(level: Level, file: str = "m.ort") -> Artifact:
    """Equal bytes for every level: the first that is planned is measured for all."""
    return Artifact(
        model="m", variant=Variant(level=level), file=file, size_bytes=len(FILE),
        sha256=hashlib.sha256(FILE).hexdigest(), semantic_digest="b" * 64, operators={}, source_operators={},
    )  # fmt: skip


def entered(
    store: Store, devices: Sequence[str], rounds: int, name: str = "c1", *, file: str = "m.ort", folder: str = ""
) -> CampaignRecord:
    """A campaign of one model with two ways to run, stored for devices of the lab, not yet in the queue."""
    config = Config(
        name="lab", models=(ModelConfig(path="m.onnx"),), devices=(f"{SCHEME}:0",),
        measure=MeasureConfig(rounds=rounds), runs=(RunConfig(threads=(1, 2)),),
        output=OutputConfig(folder=folder or None),
    )  # fmt: skip
    facts = [DeviceFacts(name=device, platform="linux", abis=("x86_64",)) for device in devices]
    artifacts = [made(Level.BASIC, file), made(Level.ALL, file)]
    legal, _ = plan_runs(config.runs, artifacts, facts)
    record = JobRecord(
        config=config, host=Host(), versions=lab_versions(), models=(ModelFacts(name="m", file="m.onnx"),),
        planned=tuple(recorded(in_modes(legal, config.measure), None)), skipped=(), failures=(), warnings=(), checks={},
        references={"m": Reference(inputs=(), outputs=(), precision=OutputPrecision.FLOAT32)},
    )  # fmt: skip
    campaign = CampaignRecord(id=name, name="lab", created_at="2026-01-01T00:00:00.000Z", document=record)
    store.start(campaign, facts, artifacts)
    return campaign


def submitted(
    store: Store, folder: Path, names: Sequence[str], rounds: int, name: str = "c1", *, priority: int = 0,
    address: str = "",
) -> CampaignRecord:  # fmt: skip
    """A campaign in the queue for these rigs; its file is removed where it was submitted."""
    campaign = entered(store, names, rounds, name)
    file = folder / "m.ort"
    file.write_bytes(FILE)
    kept = keep_files(store, {"artifacts/m.ort": file})
    file.unlink()
    submit_jobs(store, name, most_runs(campaign.job(), names), kept, priority=priority, address=address)
    return campaign


@contextmanager
def agent(url: str, host: str, names: tuple[str, ...]) -> Iterator[threading.Event]:
    """An agent as a thread; the event stops it. An error of it is raised here."""
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            work(url, names, stop, host=host)
        except BaseException as error:  # noqa: BLE001 # it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, name=host)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(LONG_SECONDS)
    if errors:
        raise errors[0]


def host_session(store: Store, host: str, devices: Sequence[str]) -> LabSession:
    """The session of a host that has these devices, and does nothing by itself."""
    session = LabSession(store.engine, host, f"key of {host}")
    assert session.has_name
    session.sign_of_life("{}", "", {name: f'{{"name":"{name}","platform":"linux"}}' for name in devices})
    return session


def silent(store: Store, host: str) -> None:
    """As if nothing had been heard of a host for an hour."""
    past = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 1)
    store.write(lambda connection: connection.execute(hosts.update().where(hosts.c.name == host).values(seen=past)))


def end_session(host: str) -> sa.TextClause:
    """What ends the connection of a host's session, as a cable does that is pulled."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
    return sa.text(query).bindparams(name=f"ort-mobile {host}")


def until(ended: Callable[[], bool], seconds: float = LONG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not ended():
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.1)


def settled(count: Callable[[], int], seconds: float = 1.0) -> int:
    """A number once it has not changed for so long."""
    known, since = count(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.05)
        if (now := count()) != known:
            known, since = now, time.monotonic()
    return known


def all_in(store: Store, *states: str) -> Callable[[], bool]:
    return lambda: all(job.state in states for job in jobs_of(store))


@dataclass(frozen=True, slots=True)
class Faults:
    """What must not be, counted: planned runs without a result, results beyond the first, those of another device."""

    missing: int
    twice: int
    wrong_device: int


def faults(store: Store, campaign: CampaignRecord, rounds: int) -> Faults:
    """Compare what is stored with every planned run of every round, and with the numbers of its own device."""
    runs, record = store.runs(campaign.id), campaign.job()
    stored = Counter((run.planned, run.round) for run in runs)
    wanted = {(planned.id, number) for planned in record.planned if not planned.same_as for number in range(rounds)}
    devices = {planned.id: planned.device for planned in record.planned}
    return Faults(
        missing=len(wanted - set(stored)),
        twice=sum(stored.values()) - len(wanted & set(stored)),
        wrong_device=sum(
            run.result.device != devices.get(run.planned)
            or run.result.latencies_ns != latencies_of(run.result.device.partition("@")[0], run.spec.id)
            for run in runs
        ),
    )


def check_stored(store: Store, campaign: CampaignRecord, rounds: int) -> None:
    """Every planned run of every round is stored, once, with the numbers of its own device."""
    assert faults(store, campaign, rounds) == Faults(missing=0, twice=0, wrong_device=0)


HEALTH = "RIG_HEALTH"
"""Environment variable: a JSON file of what is wrong with rigs when they run the golden model, by their names."""

SCORES = np.array([[0.25, -1.5, 3.0]], np.float32)


class GoldenRig(ScriptedDevice):
    """A rig that computes the golden model's outputs and takes as long as a real computer did, one group after another.

    The file of HEALTH has for each rig `factor` (of its times), `wrong` (outputs) and `fails` (a kind of failure).
    """

    def run(self, spec: RunSpec) -> RunResult:
        if not spec.model.endswith(GOLDEN_FILE):
            return super().run(spec)
        path = Path(os.environ[HEALTH])
        ill = json.loads(path.read_text()).get(self.name.partition("@")[0], {})
        self._count(spec.id)
        if "fails" in ill:
            failure = Failure(code=FailureKind(ill["fails"]), what="as scripted", why="it is broken")
            return without_measurement(spec, self.name, failure)
        number = int.from_bytes(secrets.token_bytes(4)) % len(RECORDED)
        latencies_ns = (int(RECORDED[number] * ill.get("factor", 1.0)),) * 20
        outputs: tuple[TensorFile, ...] = ()
        if spec.outputs_folder:
            file = Path(spec.outputs_folder) / "scores.raw"
            file.write_bytes((SCORES * (2 if ill.get("wrong") else 1)).tobytes())
            outputs = (TensorFile(name="scores", dtype=ElementType.FLOAT32, shape=SCORES.shape, file=str(file)),)
        return RunResult(
            spec_id=spec.id, device=self.name, status=Status.OK, latencies_ns=latencies_ns, started_at=utc_now(),
            outputs=outputs,
        )  # fmt: skip

    def _count(self, name: str) -> None:
        with Path(f"{os.environ[HEALTH]}.journal").open("a") as file:
            file.write(f"{self.name} {name}\n")


def golden_stored(store: Store, folder: Path, name: str = "golden") -> str:
    """A golden model in the database, as `lab golden` stores one, for rigs of HEALTH."""
    folder.mkdir(exist_ok=True)
    (folder / "scores.raw").write_bytes(SCORES.tobytes())
    (folder / GOLDEN_FILE).write_bytes(b"golden")
    scores = TensorFile(name="scores", dtype=ElementType.FLOAT32, shape=SCORES.shape, file=str(folder / "scores.raw"))
    config = Config(
        name="golden", models=(ModelConfig(path="g.onnx"),), runs=(RunConfig(threads=1),),
        measure=MeasureConfig(rounds=1, min_runs=20, min_seconds=0.001),
    )  # fmt: skip
    record = JobRecord(
        config=config, host=Host(), versions=lab_versions(), models=(ModelFacts(name="m", file="m.onnx"),), planned=(),
        skipped=(), failures=(), warnings=(), checks={},
        references={"m": Reference(inputs=(), outputs=(scores,), precision=OutputPrecision.FLOAT32)},
    )  # fmt: skip
    campaign = CampaignRecord(id=name, name="golden", created_at="2026-01-01T00:00:00.000Z", document=record)
    store.start(campaign, (), [made(Level.BASIC, GOLDEN_FILE)])
    paths = {f"artifacts/{GOLDEN_FILE}": folder / GOLDEN_FILE, "reference/m/scores.raw": folder / "scores.raw"}
    set_golden(store, name, keep_files(store, paths))
    return name
