"""New SQLite databases of tests: their tables are copied from the first, as making each by Alembic takes 20 ms."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline.campaign.store import migrations

CONFIG, UPGRADE = migrations._config, migrations.upgrade


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Run the migrations for one new database of this process, and its statements for the others."""
    statements: list[str] = []

    def upgrade(connection: Connection) -> None:
        sqlite = connection.dialect.name == "sqlite"
        if not sqlite or migrations._config is not CONFIG or sa.inspect(connection).get_table_names():
            UPGRADE(connection)
        elif statements:
            for statement in statements:
                connection.exec_driver_sql(statement)
        else:
            UPGRADE(connection)
            statements.extend(_schema(connection))

    with mock.patch.object(migrations, "upgrade", upgrade):
        yield


def _schema(connection: Connection) -> Iterator[str]:
    yield from connection.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
    ).scalars()
    revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    yield f"INSERT INTO alembic_version VALUES ('{revision}')"


@contextlib.contextmanager
def migrated() -> Iterator[None]:
    """Run the migrations for each new database, as the product does: for tests of the migrations themselves."""
    with mock.patch.object(migrations, "upgrade", UPGRADE):
        yield
