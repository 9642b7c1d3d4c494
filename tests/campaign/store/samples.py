"""A campaign with its artifact, and runs of it; and one migration more, as a later release may have."""

import os
from pathlib import Path

import pytest
from alembic.config import Config as AlembicConfig

from device_runner.result import Failure, FailureKind, Mark, RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.record import (
    CampaignRecord,
    Host,
    JobRecord,
    ModelFacts,
    Prediction,
    RecordedRun,
    RunRecord,
    Skipped,
)
from pipeline.campaign.store import migrations
from pipeline.check.compare import OutputCheck
from pipeline.config import Config, ModelConfig
from pipeline.core.files import REVISION
from pipeline.core.variant import Artifact, Level, Variant

DOCUMENT = JobRecord(
    config=Config(name="mnist", models=(ModelConfig(path="mnist.onnx"),)),
    host=Host(cores=2),
    versions={"ort-mobile": "1.0.0"},
    models=(ModelFacts(name="mnist", file="mnist.onnx"),),
    planned=(
        RecordedRun(id="s1", device="local", model="mnist", variant="basic-fixed", options=RunOptions(), run="cpu"),
    ),
    skipped=(Skipped(what="it is away", device="adb:A"),),
    failures=(),
    warnings=(),
    checks={},
)
CAMPAIGN = CampaignRecord(id="c1", name="mnist", created_at="2026-01-01T00:00:00.000Z", document=DOCUMENT)
ARTIFACT = Artifact(
    model="mnist",
    variant=Variant(level=Level.BASIC),
    file="mnist.basic.ort",
    size_bytes=30_000,
    sha256="a" * 64,
    semantic_digest="b" * 64,
    operators={"ai.onnx:Conv": 2},
    source_operators={"ai.onnx:Conv": 2, "ai.onnx:Add": 3},
)


def run_record(
    spec: str = "s1", number: int = 0, latencies_ns: tuple[int, ...] = (5, 7, 6), failure: Failure | None = None
) -> RunRecord:
    result = RunResult(
        spec_id=spec,
        device="local",
        status=Status.OK if failure is None else Status.FAILED,
        failure=failure,
        latencies_ns=latencies_ns,
        marks=(Mark.THROTTLED,),
        started_at="2026-01-01T00:00:01.000Z",
    )
    return RunRecord(
        campaign="c1",
        planned=spec,
        round=number,
        model="mnist",
        variant="basic-fixed",
        spec=RunSpec(id=spec, model="mnist.basic.ort", options=RunOptions(intra_op_threads=2)),
        result=result,
        checks=(OutputCheck(output="logits", passed=True, max_abs_error=1e-6, cosine=1.0),),
        prediction=Prediction(nodes=6, claimed=4, partitions=1, estimate=False, rules=""),
    )


def failed(kind: FailureKind, spec: str = "s1") -> RunRecord:
    return run_record(spec, latencies_ns=(), failure=Failure(code=kind, what="it broke"))


SECOND = "v9999"
SECOND_MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{SECOND}"
down_revision = "{REVISION}"


def upgrade() -> None:
    op.add_column("runs", sa.Column("note", sa.Text, nullable=False, server_default="nobody looked"))
    op.create_table("notes", sa.Column("id", sa.Integer, primary_key=True))
"""


def add_second_migration(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this program one of a later release until the test ends."""
    (folder / "migrations").mkdir()
    (folder / "migrations/v9999_notes.py").write_text(SECOND_MIGRATION)
    folders = (str(Path(migrations.__file__).with_name("versions")), str(folder / "migrations"))
    config, released = migrations._config, migrations.revisions()

    def with_second() -> AlembicConfig:
        made = config()
        made.set_main_option("version_locations", os.pathsep.join(folders))
        return made

    monkeypatch.setattr(migrations, "_config", with_second)
    monkeypatch.setattr(migrations, "revisions", lambda: (SECOND, *released))
    monkeypatch.setattr("pipeline.core.files.REVISION", SECOND)
