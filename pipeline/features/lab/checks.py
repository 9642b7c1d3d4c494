"""What a lab's database has of the health of devices: the golden model, checks, and devices in quarantine.

Checks and quarantines are entered by functions of the database, for a device whose lease the host has; the golden model
is named, and a device is given back, by the lab's operator alone.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Connection

from device_runner import safe_text
from pipeline.campaign.store import Store, StoreError
from pipeline.campaign.store import tables as store_tables
from pipeline.core.errors import ConfigError
from pipeline.features.lab.content import LabFile
from pipeline.features.lab.tables import checks, goldens


class CheckNote(msgspec.Struct, frozen=True, kw_only=True):
    """What else is known of a check: the values of its groups, how many times the usual value it is, and the heat."""

    groups_ns: tuple[int, ...] = ()
    ratio: float | None = None
    thermal_status: int | None = None
    celsius: float | None = None
    seconds: float = 0.0


def golden_of(connection: Connection) -> str:
    """The campaign that devices are checked with now, "" for none."""
    return str(connection.scalar(sa.select(goldens.c.campaign_id).where(goldens.c.ended.is_(None))) or "")


def set_golden(store: Store, campaign: str, files: Sequence[LabFile] = ()) -> None:
    """Check devices with a stored campaign's model from now on, with "" by nothing.

    Raises PipelineError for no right to, StoreError where its files were removed since they were stored.
    """
    change = sa.select(sa.func.lab_set_golden(campaign, sa.literal(msgspec.to_builtins(files), JSONB)))
    if not store.write(lambda connection: connection.scalar(change)):
        raise StoreError(
            "files of the golden model are gone",
            where=store.where,
            why="the database was away meanwhile",
            remedy="name it again",
        )


def in_quarantine(store: Store) -> dict[str, dict[str, Any]]:
    """Devices in quarantine with the reason, when they were put there, and the host that found it."""
    query = (
        sa.select(store_tables.quarantines)
        .where(store_tables.quarantines.c.released.is_(None))
        .order_by(store_tables.quarantines.c.device)
    )
    rows = store.read(lambda connection: connection.execute(query).all())
    return {
        quarantine.device: {
            "reason": quarantine.reason,
            "since": quarantine.placed.isoformat(),
            "host": quarantine.host,
        }
        for quarantine in rows
    }


def last_checks(store: Store) -> dict[str, dict[str, Any]]:
    """The newest check of each device: when, whether it was good, its value beside what is usual."""
    newest = sa.select(sa.func.max(checks.c.id)).group_by(checks.c.device)
    rows = store.read(lambda connection: connection.execute(sa.select(checks).where(checks.c.id.in_(newest))).all())
    return {
        check.device: {
            "at": check.at.isoformat(),
            "moment": check.moment,
            "good": check.good,
            "value_ns": check.value_ns,
            "reason": check.reason,
        }
        for check in rows
    }


def release(store: Store, device: str, *, sound: bool) -> None:
    """Give a device back to the lab; with `sound` what it measured counts after all. Raises ConfigError for none there.

    Otherwise its checks begin anew, as of a device that was repaired.
    """
    change = sa.select(sa.func.lab_release(device, sound))
    if not store.write(lambda connection: connection.scalar(change)):
        held = ", ".join(in_quarantine(store)) or "none"
        raise ConfigError(
            f"no device {safe_text.visible(device)!r} is in quarantine",
            where="lab release",
            why=f"there are: {held}",
            remedy="`ort-mobile lab status` lists them with their reasons",
        )
