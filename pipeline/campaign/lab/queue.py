"""The jobs of a lab: a campaign is submitted with one for each device, hosts take and end them; and its files.

Nothing here decides who works: an advisory lock does (session.py). States only say what is left to do.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from device_runner.device import DeviceFacts
from device_runner.reading import decode_json, visible
from pipeline.campaign.lab.tables import attached, blobs, files, hosts, jobs
from pipeline.campaign.store import Store, StoreError
from pipeline.campaign.store.errors import told
from pipeline.core.errors import ConfigError
from pipeline.core.files import replacing, sha256_of

PART_BYTES = 1 << 20
"""Files are stored in parts of this size, so that neither side has more of one in memory."""

MOST_BYTES = 8 << 30
"""What the files of one campaign may have together."""

KEPT_DAYS = 30
"""For how long after its end the files of a campaign stay, for `lab close` and for campaigns that use the same."""

FILES_LOCK = 0x6F72_746D_6669_6C65
"""PostgreSQL's advisory lock of what enters or removes files."""

UPLOAD_LOCK = 0x6F72_746D_7570_6C64
"""PostgreSQL's advisory lock that those who upload files of no campaign yet share, until it has them."""

ATTACHED_SECONDS = 600
"""For how long after its host was heard of last a device counts as attached: a host may restart meanwhile."""

WAITING, RUNNING, MEASURED, DONE, FAILED, CANCELLED = "waiting", "running", "measured", "done", "failed", "cancelled"

OPEN = (WAITING, RUNNING)
ENDED = (DONE, FAILED, CANCELLED)

ROUNDS, FRESH = "rounds", "fresh"
"""The stages of a job: the rounds that choose what ships, and those that say how good the choice is."""

MOST_ATTEMPTS = 3
"""How often a device that was left before the end is taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabJob:
    """One device of one campaign. `reason` says why it was left, refused or ended without all of its runs."""

    campaign: str
    device: str
    state: str
    stage: str = ROUNDS
    attempts: int = 0
    host: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFile:
    """A file of a campaign by its path in an output folder."""

    name: str
    sha256: str
    size_bytes: int


def attached_devices(store: Store) -> dict[str, DeviceFacts]:
    """The devices that the hosts of a lab have, by their names among all; the newest facts of each.

    Those of hosts that were not heard of for `ATTACHED_SECONDS` are left out.
    """
    silent = sa.extract("epoch", sa.func.now() - attached.c.seen).label("silent_seconds")
    query = sa.select(attached.c.name, attached.c.document, silent).order_by(attached.c.seen)
    rows = store.read(lambda connection: connection.execute(query).all())
    return {row.name: decode_json(row.document, DeviceFacts) for row in rows if row.silent_seconds < ATTACHED_SECONDS}


@contextmanager
def uploading(store: Store) -> Iterator[None]:
    """While files are stored that no campaign has yet: nobody removes them as those of a submit that was broken off."""
    with told(store.where), store.engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_lock_shared(UPLOAD_LOCK)))
        connection.commit()
        try:
            yield
        finally:
            connection.invalidate()  # the lock ends with its session


def keep_files(store: Store, paths: Mapping[str, Path]) -> list[LabFile]:
    """Store files by content, in transactions of one part; what is there already is not sent again.

    Raises ConfigError for more than `MOST_BYTES`.
    """
    total = sum(path.stat().st_size for path in paths.values())
    if total > MOST_BYTES:
        raise ConfigError(
            f"the files of this campaign have {total >> 20} MB", where="lab submit",
            why=f"a campaign may put {MOST_BYTES >> 20} MB into the database", remedy="submit fewer models or variants",
        )  # fmt: skip
    found = []
    for name, path in paths.items():
        digest = sha256_of(path)
        found.append(LabFile(name=name, sha256=digest, size_bytes=path.stat().st_size))
        known = store.read(partial(_parts, digest=digest))
        with path.open("rb") as file:
            for number, content in enumerate(iter(partial(file.read, PART_BYTES), b"")):
                if number not in known:
                    store.write(partial(_put_part, digest=digest, number=number, content=content))
    return found


def _parts(connection: Connection, digest: str) -> set[int]:
    return set(connection.scalars(sa.select(blobs.c.part).where(blobs.c.sha256 == digest)))


def _put_part(connection: Connection, digest: str, number: int, content: bytes) -> None:
    if number not in _parts(connection, digest):
        connection.execute(blobs.insert().values(sha256=digest, part=number, content=content))


def fetch_file(store: Store, file: LabFile, path: Path) -> None:
    """Write a stored file to a path, whole or not at all, unless it is there. Raises StoreError for another content."""
    if path.is_file() and path.stat().st_size == file.size_bytes and sha256_of(path) == file.sha256:
        return
    digest = hashlib.sha256()
    with replacing(path) as temporary, temporary.open("wb") as out:
        for number in range(-(-file.size_bytes // PART_BYTES)):
            part = store.read(partial(_part, digest=file.sha256, number=number))
            digest.update(part or b"")
            out.write(part or b"")
        if digest.hexdigest() != file.sha256:
            raise StoreError(
                f"the file {file.name} is not as it was submitted", where=store.where,
                why=f"parts of it are lost or were changed; {KEPT_DAYS} days after a campaign's end they are removed",
                remedy="submit the campaign again",
            )  # fmt: skip


def _part(connection: Connection, digest: str, number: int) -> bytes | None:
    query = sa.select(blobs.c.content).where(blobs.c.sha256 == digest, blobs.c.part == number)
    return connection.execute(query).scalar()


def submit_jobs(store: Store, campaign: str, devices: Iterable[str], made: Sequence[LabFile]) -> None:
    """Enter a job for each device, and the campaign's files, all in one transaction.

    Raises StoreError where files were removed since they were stored.
    """
    rows = [{"campaign_id": campaign, "device": name, "state": WAITING, "stage": ROUNDS} for name in devices]
    wanted = {one.sha256: -(-one.size_bytes // PART_BYTES) for one in made}

    def work(connection: Connection) -> None:
        _alone_with_files(connection)
        if connection.execute(sa.select(jobs.c.device).where(jobs.c.campaign_id == campaign)).first():
            return
        if sum(len(_parts(connection, digest)) for digest in wanted) < sum(wanted.values()):
            raise StoreError(
                "files of the campaign are gone", where=store.where, remedy="submit it again",
                why="they were of a campaign that ended long ago, or the database was away meanwhile",
            )  # fmt: skip
        connection.execute(jobs.insert().values(changed=sa.func.now()), rows)
        if made:
            values = [{"campaign_id": campaign, **{name: getattr(one, name) for name in one.__slots__}} for one in made]
            connection.execute(files.insert(), values)

    store.write(work)


def remove_old_files(store: Store, days: int = KEPT_DAYS) -> int:
    """Remove the content of files that only campaigns use that ended so many days ago; how many parts that were.

    Also of files that no campaign has, left by a submit that was broken off, unless another uploads at this moment.
    """
    young = sa.func.now() - sa.func.make_interval(0, 0, 0, days)
    kept = sa.or_(jobs.c.state.not_in(ENDED), jobs.c.changed > young)
    used = sa.select(files.c.sha256).join(jobs, jobs.c.campaign_id == files.c.campaign_id).where(kept)
    submitted = sa.select(files.c.sha256)
    unused = blobs.delete().where(blobs.c.sha256.not_in(used))

    def work(connection: Connection) -> int:
        _alone_with_files(connection)
        alone = connection.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(UPLOAD_LOCK)))
        return connection.execute(unused if alone else unused.where(blobs.c.sha256.in_(submitted))).rowcount

    return store.write(work)


def _alone_with_files(connection: Connection) -> None:
    """Until the end of this transaction no other enters or removes files: what was found there stays true."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(FILES_LOCK)))


def files_of(store: Store, campaign: str) -> list[LabFile]:
    """The files of a campaign."""
    query = sa.select(files.c.name, files.c.sha256, files.c.size_bytes).where(files.c.campaign_id == campaign)
    rows = store.read(lambda connection: connection.execute(query).mappings().all())
    return [LabFile(**row) for row in rows]


def jobs_of(store: Store, campaign: str | None = None) -> list[LabJob]:
    """The jobs of a campaign, or of all."""
    query = sa.select(jobs).order_by(jobs.c.campaign_id, jobs.c.device)
    if campaign is not None:
        query = query.where(jobs.c.campaign_id == campaign)
    return [_job(row) for row in store.read(lambda connection: connection.execute(query).mappings().all())]


def _job(row: Mapping[Any, Any]) -> LabJob:
    return LabJob(
        campaign=row["campaign_id"], device=row["device"], state=row["state"], stage=row["stage"],
        attempts=row["attempts"], host=row["host"], reason=row["reason"],
    )  # fmt: skip


def open_jobs(connection: Connection, devices: Sequence[str]) -> list[LabJob]:
    """Jobs of these devices that are left to do, the oldest campaign first."""
    query = sa.select(jobs).where(jobs.c.device.in_(devices), jobs.c.state.in_(OPEN)).order_by(jobs.c.campaign_id)
    return [_job(row) for row in connection.execute(query).mappings()]


def change_job(store: Store, job: LabJob, *, reason: str | None = None, **values: str | int) -> None:
    """Change an open job; one that was cancelled or has ended stays as it is. A reason may quote a device."""
    if reason is not None:
        values["reason"] = visible(" ".join(reason.split()))
    same = (jobs.c.campaign_id == job.campaign, jobs.c.device == job.device, jobs.c.state.in_((*OPEN, MEASURED)))
    change = jobs.update().where(*same).values(changed=sa.func.now(), **values)
    store.write(lambda connection: connection.execute(change))


def stages_to_end(connection: Connection) -> list[str]:
    """Campaigns of which every device has its rounds behind it, and some wait for the choice."""
    left = sa.func.count().filter(jobs.c.state.in_(OPEN))
    measured = sa.func.count().filter(jobs.c.state == MEASURED)
    query = sa.select(jobs.c.campaign_id).group_by(jobs.c.campaign_id).having(left == 0, measured > 0)
    return list(connection.scalars(query))


def ended_campaigns(connection: Connection, names: Iterable[str]) -> set[str]:
    """Campaigns whose folders have these names, and of which no device has anything left to do."""
    left = sa.func.count().filter(jobs.c.state.not_in(ENDED))
    query = sa.select(jobs.c.campaign_id).where(sa.func.replace(jobs.c.campaign_id, ":", "-").in_(list(names)))
    return set(connection.scalars(query.group_by(jobs.c.campaign_id).having(left == 0)))


def end_stage(store: Store, campaign: str, chosen: Mapping[str, str]) -> None:
    """Enter the fresh rounds: `chosen` has planned runs with their devices; devices without any are done."""
    again: dict[str, list[str]] = {}
    for run, device in chosen.items():
        again.setdefault(device, []).append(run)
    waits = (jobs.c.campaign_id == campaign, jobs.c.state == MEASURED)

    def work(connection: Connection) -> None:
        for device, names in again.items():
            values = {"state": WAITING, "stage": FRESH, "again": msgspec.json.encode(names).decode()}
            connection.execute(
                jobs.update().where(*waits, jobs.c.device == device).values(changed=sa.func.now(), **values)
            )
        connection.execute(jobs.update().where(*waits).values(changed=sa.func.now(), state=DONE))

    store.write(work)


def again_of(store: Store, job: LabJob) -> set[str]:
    """The planned runs of a job's fresh rounds."""
    query = sa.select(jobs.c.again).where(jobs.c.campaign_id == job.campaign, jobs.c.device == job.device)
    return set(msgspec.json.decode(store.read(lambda connection: connection.execute(query).scalar()) or "[]"))


def cancel_jobs(store: Store, campaign: str) -> int:
    """Cancel what is left of a campaign; how many jobs that were. Hosts stop before their next run."""
    same = (jobs.c.campaign_id == campaign, jobs.c.state.in_((*OPEN, MEASURED)))
    values = {"state": CANCELLED, "reason": "cancelled", "changed": sa.func.now()}
    return store.write(lambda connection: connection.execute(jobs.update().where(*same).values(values)).rowcount)


def lab_hosts(store: Store) -> list[dict[str, Any]]:
    """The hosts of a lab: name, versions, what they say, for how long nothing was heard of them, count of devices."""
    silent = sa.extract("epoch", sa.func.now() - hosts.c.seen).label("silent_seconds")
    of_host = sa.select(sa.func.count()).where(attached.c.host == hosts.c.name).scalar_subquery().label("devices")
    query = sa.select(hosts.c.name, hosts.c.versions, hosts.c.note, silent, of_host).order_by(hosts.c.name)
    rows = store.read(lambda connection: connection.execute(query).mappings().all())
    return [{**row, "silent_seconds": round(float(row["silent_seconds"]), 1)} for row in rows]
