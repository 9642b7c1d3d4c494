"""The plan of a package: the turns of a campaign in their order, as data that equal configs make equal."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from device_runner import untrusted_files
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.campaign import record as campaign_record
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError
from pipeline.features.away import linked

PLAN = "plan.json"
PACKAGES = "packages"
"""The folder, in that of the job, of the plans that were exported: what comes back is compared with these."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class PackagedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a package, by its name there."""

    sha256: Digest
    bytes: int


class PackagedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A planned run, whatever the device is called: an artifact by its sha256 with session options."""

    model: str
    variant: str
    artifact: str
    options: RunOptions
    mode: configs.MeasureMode = configs.MeasureMode.STEADY
    mapped: bool = False


class PackageTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One run in one round. `run` is its position among the plan's, `request` the checksum that its answer has, too.

    `limit_seconds` is how long its process may live; the last two are what is read of its answer and outputs at most.
    """

    turn: str
    run: int
    round: int
    request: int
    limit_seconds: int
    answer_bytes: int
    outputs_bytes: int


class PackagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a package. Nothing in it says when, where or for which device it was made.

    `library` is the sha256 of the libonnxruntime in it, null where an app links it: `made_with` names it in any case.
    `wait_seconds` is how long a turn waits for a device that is not fit. `runs` are all that were planned; those that
    run the same as another have no turns.
    """

    version: int = 1
    name: str
    platform: configs.Platform
    abi: str
    made_with: dict[str, str]
    library: Digest | None
    wait_seconds: int
    runs: tuple[PackagedRun, ...]
    turns: tuple[PackageTurn, ...]
    files: dict[str, PackagedFile]

    @property
    def encoded(self) -> bytes:
        """As it stands in the package."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1) + b"\n"

    @property
    def digest(self) -> str:
        """What a session names, so that it belongs to no other package."""
        return hashlib.sha256(self.encoded).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePackage:
    """A package whose plan, requests and files lie in `folder`, for what adds a runner of its `turns`.

    `conditions` are what turns wait for; `runtime` is what an app for iPhones links.
    """

    folder: Path
    plan: PackagePlan
    turns: tuple[PackageTurn, ...]
    conditions: configs.ConditionsConfig
    runtime: linked.LinkedRuntime | None = None


class KeptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the job's folder keeps of a package: its campaign, its plan, and why other runs are not in it."""

    campaign: str
    plan: PackagePlan
    skipped: tuple[campaign_record.Skipped, ...] = ()


def keep_plan(folder: Path, kept: KeptPlan) -> None:
    """Keep a plan in the folder of its job."""
    storage.make_folder(folder / PACKAGES)
    storage.write_bytes(folder / PACKAGES / f"{kept.plan.digest}.json", msgspec.json.encode(kept))


def kept_plan(folder: Path, digest: str) -> KeptPlan | None:
    """The plan of a package that a job's folder keeps; None for another job's. Raises ConfigError for a damaged one."""
    path = folder / PACKAGES / f"{digest}.json"
    try:
        kept = untrusted_files.decode_json(untrusted_files.read_regular(path, PLAN_BYTES), KeptPlan)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            "the plan of a package cannot be read", where=str(path), why=str(error), remedy="export it again"
        ) from error
    if kept.plan.digest != digest:
        raise ConfigError(
            "the plan of a package is damaged", where=str(path), why="it has another digest", remedy="export it again"
        )
    return kept


PLAN_BYTES = 256 << 20
"""The most that is read of a plan: a turn has 200 bytes."""
