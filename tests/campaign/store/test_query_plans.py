"""What is read of one campaign is found by indexes: a lab's store has millions of runs of others."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline.campaign.store import Store
from tests.campaign.store.samples import run_record

READS: dict[str, Callable[[Store], object]] = {
    "a campaign": lambda store: store.campaign("c1"),
    "the campaigns of a name": lambda store: store.campaigns("mnist"),
    "runs": lambda store: store.runs("c1"),
    "medians of runs": lambda store: list(store.run_medians(["c1"])),
    "what is finished": lambda store: store.finished("c1"),
    "what failed": lambda store: store.failed("c1"),
    "artifacts": lambda store: store.artifacts("c1"),
    "devices": lambda store: store.devices("c1"),
    "a run that is stored": lambda store: store.add_run(run_record(number=1)),
}
EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}


@pytest.mark.parametrize("read", READS)
def test_no_table_is_read_as_a_whole(read: str, store: Store) -> None:
    store.add_run(run_record())
    plans: list[str] = []

    def explain(connection: Connection, cursor: object, statement: str, parameters: Any, *more: object) -> None:
        if statement.startswith("SELECT"):
            if connection.dialect.name == "postgresql":  # it reads small tables as a whole, and this one is small
                connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            explained = EXPLAIN[connection.dialect.name] + statement
            plans.extend(str(row[-1]) for row in connection.exec_driver_sql(explained, parameters))

    engine = store.engine
    sa.event.listen(engine, "before_cursor_execute", explain)
    READS[read](store)
    sa.event.remove(engine, "before_cursor_execute", explain)
    assert plans
    assert not [line for line in plans if line.startswith("SCAN") or "Seq Scan" in line], plans
