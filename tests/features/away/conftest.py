"""A package of a small campaign, and what one run of it on this computer brought: made once, copied by each test."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.campaign.store import Store, open_store
from pipeline.core import files as storage
from pipeline.features.away.collect import Collected, Collecting, store_session
from pipeline.features.away.plan import KeptPlan, kept_plan
from pipeline.features.away.session import opened_sessions
from tests.command import ort_mobile
from tests.configs import DESK, MNIST, short

CONFIG = f"""name = "away"
{MNIST}{DESK}
[variants]
levels = ["none", "all"]
styles = ["fixed"]
[[runs]]
variants = ["*"]
{short(3, 20)}
mode = ["steady", "cold", "sustained"]
sustained_seconds = 1
"""
TURNS = 14
"""Two files: three rounds steady and cold, and once sustained."""


@dataclass(frozen=True)
class Job:
    """A job's folder with a package that was exported and run."""

    folder: Path

    @property
    def output(self) -> Path:
        """The output folder, which has the campaign."""
        return self.folder / "output/away"

    @property
    def package(self) -> Path:
        """The package."""
        return self.folder / "pack"

    @property
    def session(self) -> Path:
        """What the run of the package left."""
        return self.package / "session"

    @property
    def plan(self) -> KeptPlan:
        """The plan that the job keeps."""
        plan = kept_plan(self.output, (self.package / "package").read_text().strip())
        assert plan
        return plan

    def run(self) -> int:
        """Run what is left of the package; the exit code."""
        return subprocess.run(["sh", str(self.package / "run.sh")], capture_output=True, check=False).returncode

    def store(self) -> Store:
        """The store of its campaign."""
        return open_store(f"sqlite:///{self.output / storage.DATABASE}")

    def collected(self, *places: Path, name: str = "") -> list[Collected]:
        """What comes of sessions, without a report."""
        with self.store() as store, opened_sessions(list(places or [self.session])) as sessions:
            collecting = Collecting(store=store, campaign=self.plan.campaign, folder=self.output, work=self.folder)
            return [store_session(collecting, session, self.plan, name) for session in sessions]


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Exported and run."""
    folder = tmp_path_factory.mktemp("away")
    (folder / "away.toml").write_text(CONFIG)
    ort_mobile("export", "away.toml", "--to", "pack", cwd=folder)
    job = Job(folder)
    assert job.run() == 0
    return job


@pytest.fixture
def job(done: Job, tmp_path: Path) -> Job:
    """A copy of it."""
    shutil.copytree(done.folder, tmp_path / "job")
    return Job(tmp_path / "job")
