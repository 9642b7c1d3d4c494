"""Plans no longer have the URL of the database, which may hold a password.

A row whose digest is not that of its content was damaged before: it loses the URL, too, and stays damaged.
"""

import json

import sqlalchemy as sa
from alembic import op

from pipeline.campaign.store.tables import digest

revision = "0005"
down_revision = "0004"

DIGESTED = ("id", "name", "created_at", "sequence", "document")


def upgrade() -> None:
    """Take the URL out of every document that has one."""
    connection = op.get_bind()
    read = sa.text(f"SELECT {', '.join(DIGESTED)}, digest FROM campaigns WHERE id = :id")  # noqa: S608  # constants
    change = sa.text("UPDATE campaigns SET document = :document, digest = :digest WHERE id = :id")
    for name in connection.scalars(sa.text("SELECT id FROM campaigns")).all():
        row = connection.execute(read, {"id": name}).mappings().one()
        document = _without_database(row["document"])
        if document is not None:
            sound = row["digest"] == digest(row[column] for column in DIGESTED)
            changed = {**row, "document": document}
            value = digest(changed[column] for column in DIGESTED) if sound else row["digest"]
            connection.execute(change, {"id": name, "document": document, "digest": value})


def _without_database(text: str) -> str | None:
    """The document without the URL; None where there is nothing to take out."""
    try:
        document = json.loads(text)
        output = document["config"]["output"]
        if output["database"] is None:
            return None
        output["database"] = None
    except (ValueError, TypeError, KeyError):
        return None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
