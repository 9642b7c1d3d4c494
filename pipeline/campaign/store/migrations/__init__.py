"""Migrations by Alembic, for SQLite and PostgreSQL alike: every schema that a release wrote can be upgraded."""

import threading
from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

if TYPE_CHECKING:
    from alembic.config import Config

_ONE_AT_A_TIME = threading.Lock()
"""Alembic keeps the environment of a migration in a module."""


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "pipeline.campaign.store:migrations")
    config.set_main_option("path_separator", "os")
    return config


@cache
def revisions() -> tuple[str, ...]:
    """All revisions, the newest first."""
    from alembic.script import ScriptDirectory

    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(connection: Connection) -> None:
    """Bring a database to the newest revision, in the caller's transaction."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    with _ONE_AT_A_TIME:
        command.upgrade(config, "head")
