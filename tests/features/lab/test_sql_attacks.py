"""SQL of a login in each role, and of one in none, over every table and function: refused by name, nothing changed.

What a migration adds is found in the database: a table that a role may write, or a function that it may call, needs an
attack here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.campaign.store import Store, open_store
from pipeline.core.errors import ExitCode, PipelineError
from pipeline.core.files import REVISION
from pipeline.features.lab.queue import SessionLost
from tests.command import ort_mobile
from tests.features.lab.farm import entered, host_session, submitted
from tests.features.lab.test_attacks import AGENT, COMMON, READER, SUBMITTER, with_roles
from tests.features.lab.test_logins import add

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

MORE = {
    "agent": {
        "SELECT lab_end('h1', 'key of h1')": "the host h1 is not of this session",
        "SELECT lab_keep('h1', 'key of h1', '{}')": "the host h1 is not of this session",
        "SELECT lab_next('h1', 'key of h1', 'rig:0', '{}')": "the host h1 is not of this session",
        "SELECT lab_turn('h1', 'key of h1', 'c1', 'rig:0', '{}', true)": "the host h1 is not of this session",
        "SELECT lab_notice('h1', 'key of h1', '{http}')": "the host h1 is not of this session",
        "SELECT lab_noticed('h1', 'key of h1', 'c1', 'http', '')": "the host h1 is not of this session",
        "SELECT lab_take('evil', 'another key', 'rig:1')": "the host evil is not of this session",
        "INSERT INTO runs (campaign_id) VALUES ('c2')": "row-level security",
        "INSERT INTO runs (campaign_id, device, host, spec_id, planned, round) VALUES ('c1', 'rig:0', 'evil',"
        " 'rig:0/x#0', 'rig:0/x', 0)": "the host evil has no lease of rig:0|no lease of rig:0 at the host evil",
        "INSERT INTO runs (median_ns, campaign_id) SELECT median_ns, campaign_id FROM runs ON CONFLICT DO NOTHING":
            "no lease|host|device",
        "INSERT INTO runs (campaign_id) VALUES ('c1') ON CONFLICT (campaign_id, spec_id, round) DO UPDATE"
        " SET median_ns = 1": "permission denied",
        "INSERT INTO latencies SELECT id, 1, decode('0500000000000000', 'hex') FROM runs ON CONFLICT (run_id) DO UPDATE"
        " SET samples = 0": "permission denied",
        "INSERT INTO latencies SELECT id, 1, decode('0500000000000000', 'hex') FROM runs": "row-level security",
        "INSERT INTO campaigns (id) VALUES ('c9')": "permission denied",
        "SELECT address FROM lab_notices": "permission denied",
    },
    "submitter": {
        "SELECT lab_cancel('c1')": "the campaign c1 belongs to another login",
        "SELECT lab_prefer('c1', 9)": "the campaign c1 belongs to another login",
        "SELECT lab_prefer('own', 1000000)": "priority",
        "SELECT lab_submit('c1', '{d}', '{1}', '{1}', '[]', 0, '')": "the campaign c1 belongs to another login",
        "SELECT lab_submit('own', '{d}', '{1}', '{1}', '[]', 1000000, '')": "priority",
        "SELECT lab_submit('no such', '{d}', '{1}', '{1}', '[]', 0, '')": "no such",
        "INSERT INTO campaigns (id, name, created_at, document, digest, sequence) VALUES ('c1', '', '', '', '',"
        " lab_next_sequence()) ON CONFLICT (id) DO UPDATE SET document = ''": "permission denied",
        "SELECT address FROM lab_notices": "permission denied",
        "INSERT INTO latencies VALUES (1, 0, '')": "permission denied",
    },
    "reader": {
        "SELECT lab_submit('c1', '{d}', '{1}', '{1}', '[]', 0, '')": "permission denied",
        "SELECT lab_put('x')": "permission denied",
        "SELECT address FROM lab_notices": "permission denied",
        "INSERT INTO latencies VALUES (1, 0, '')": "permission denied",
    },
    "nobody": {
        "SELECT document FROM campaigns": "permission denied",
        "SELECT result FROM runs": "permission denied",
        "SELECT content FROM lab_blobs": "permission denied",
        "SELECT name FROM lab_hosts": "permission denied",
        "SELECT * FROM queue": "permission denied",
        f"SELECT lab_begin('evil', 'k', '{REVISION}')": "permission denied",
        "SELECT lab_put('x')": "permission denied",
        "SELECT lab_cancel('c1')": "permission denied",
        "SET ROLE ort_mobile_agent": "permission denied",
        "GRANT ort_mobile_agent TO CURRENT_USER": "permission denied|must have admin|admin option",
    },
}  # fmt: skip
"""Statements of a login in a role to a pattern of what PostgreSQL says, besides those of test_attacks.py."""

ATTACKS = {
    role: {**COMMON, **tables, **MORE[role]}
    for role, tables in {"agent": AGENT, "submitter": SUBMITTER, "reader": READER, "nobody": {}}.items()
}

HARMLESS = {
    "reader": ("SELECT lab_serves()",),
    "agent": (
        "SELECT lab_serves()",
        "SELECT lab_repeat(array_agg(id)) FROM runs", "SELECT lab_may_add('c1', 'rig:0', 'h1')",
        "SELECT lab_next('evil', 'k', 'rig:0', '{}')", "SELECT lab_turn('evil', 'k', 'c1', 'rig:0', '{}', true)",
        "SELECT lab_noticed('evil', 'k', 'c1', 'http', '')", "SELECT lab_take('evil', 'k', 'rig:0')",
    ),
    "submitter": (
        "SELECT lab_next_sequence()", "SELECT lab_remove_old_files()", "SELECT lab_needs('c1', 'v9999')",
        "SELECT lab_serves()",
    ),
}  # fmt: skip
"""Calls that may go well, and change nothing of what others have."""

TABLES = """
SELECT relname, relkind::text, (SELECT quote_ident(attname) FROM pg_attribute
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity = '' ORDER BY attnum LIMIT 1),
  array(SELECT p FROM unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
    WHERE has_table_privilege(current_user, c.oid, p)
      OR p IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege(current_user, c.oid, p))
FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm') ORDER BY relname
"""
FUNCTIONS = """
SELECT proname, has_function_privilege(current_user, p.oid, 'EXECUTE'),
  'SELECT ' || quote_ident(proname) || '(' || coalesce((SELECT string_agg('NULL::' || format_type(t, NULL), ', ')
    FROM unnest(p.proargtypes) t), '') || ')'
FROM pg_proc p WHERE pronamespace = 'public'::regnamespace ORDER BY proname
"""
WRITING = {
    "SELECT": "SELECT count(*) FROM {table}", "INSERT": "INSERT INTO {table} DEFAULT VALUES",
    "UPDATE": "UPDATE {table} SET {column} = {column}", "DELETE": "DELETE FROM {table}", "TRUNCATE": "TRUNCATE {table}",
    "TRIGGER": "CREATE TRIGGER evil BEFORE UPDATE ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
}  # fmt: skip
"""Privilege to the statement that needs it."""
OWNING = (
    "ALTER TABLE {table} ADD COLUMN evil int", "DROP TABLE {table}", "CREATE INDEX ON {table} ({column})",
    "DO $$ BEGIN LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; END $$", "CREATE POLICY evil ON {table}",
    "ALTER TABLE {table} OWNER TO CURRENT_USER",
)  # fmt: skip
DENIED = r"permission denied|must be owner|must be able|is not a table|cannot|no privileges|is a view"


@pytest.fixture
def lab(url: str, store: Store, tmp_path: Path) -> Iterator[Store]:
    """A host h1 has rig:0, its job, and a result of it; c2 is entered and not submitted."""
    submitted(store, tmp_path, ["rig:0", "rig:1"], 2)
    entered(store, ["rig:0"], 1, "c2")
    session = host_session(store, "h1", ["rig:0"])
    assert session.next_job("rig:0", ()) == "c1"
    assert add(store, "rig:0/m", "rig:0", "h1")
    with psycopg.connect(url, autocommit=True) as superuser:
        superuser.execute(
            "REVOKE EXECUTE ON FUNCTION lo_creat(int), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC"
        )
    yield store
    session.end()


def contents(url: str) -> dict[str, Any]:
    """All rows of every table."""
    with psycopg.connect(url) as owner:
        tables = [row[0] for row in owner.execute(TABLES) if row[1] == "r"]
        return {table: owner.execute(f"SELECT t::text FROM {table} t ORDER BY 1").fetchall() for table in tables}


@pytest.mark.parametrize("role", ATTACKS)
def test_no_statement_of_a_role_does_more_than_its_role_says(url: str, lab: Store, role: str) -> None:
    login = with_roles(url, f"evil_{role}", "ort_mobile_reader" if role == "nobody" else f"ort_mobile_{role}")
    if role == "nobody":
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("REVOKE ort_mobile_reader FROM evil_nobody")
    with psycopg.connect(login, autocommit=True) as connection:
        if role == "agent":
            connection.execute(f"SELECT lab_begin('evil', 'k', '{REVISION}')")
            connection.execute("SELECT lab_live('evil', 'k', '{}', '', '{}', '{}')")
        if role == "submitter":
            connection.execute(
                "INSERT INTO campaigns (id, name, created_at, document, digest, sequence) "
                "SELECT 'own', '', '', '', '', lab_next_sequence()"
            )
        before = contents(url)
        attacks = {**ATTACKS[role], **found_attacks(connection, role)}
        assert len(ATTACKS[role]) >= 30
        for statement, reason in attacks.items():
            assert re.search(reason, said_to(connection, statement)), (statement, said_to(connection, statement))
        for statement in HARMLESS.get(role, ()):
            connection.execute(statement)
    assert contents(url) == before


def said_to(connection: Any, statement: str) -> str:
    """Why a statement is refused."""
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        return str(error)
    return pytest.fail(f"it is not refused: {statement}")


def found_attacks(connection: Any, role: str) -> dict[str, str]:
    """What needs privileges that the login has not, over all that is there. It may have none without an attack."""
    attacks, written = {}, " ".join((*ATTACKS[role], *HARMLESS.get(role, ())))
    for table, kind, column, may in connection.execute(TABLES).fetchall():
        assert not {"UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"} & set(may), f"{role} may {may} {table}"
        assert "INSERT" not in may or f"INSERT INTO {table} " in written, f"no attack of {role} on {table}"
        statements = [text for privilege, text in WRITING.items() if privilege not in may]
        for statement in (*statements, *(OWNING if kind == "r" else ())):
            attacks[statement.format(table=table, column=column)] = DENIED
    for function, may, call in connection.execute(FUNCTIONS).fetchall():
        assert not may or f"{function}(" in written, f"no attack of {role} on the function {function}"
        if not may:
            attacks[call] = "permission denied"
    assert role == "nobody" or len(attacks) > 100
    return attacks


def test_a_campaign_has_the_login_that_entered_it(url: str, lab: Store) -> None:
    """Whatever it says itself."""
    with psycopg.connect(with_roles(url, "says_tester", "ort_mobile_submitter"), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO campaigns (id, name, created_at, document, digest, sequence, login) "
            "VALUES ('own', '', '', '', '', lab_next_sequence(), 'tester')"
        )
        assert connection.execute("SELECT login FROM campaigns WHERE id = 'own'").fetchone() == ("says_tester",)


COMMANDS = (["status"], ["work", "--once", "--device", "local"], ["close"], ["cancel", "c1"], ["serve", "--port", "0"])


def test_a_login_without_a_role_is_told_so_once(url: str, lab: Store) -> None:
    login = with_roles(url, "roleless", "ort_mobile_reader")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("REVOKE ort_mobile_reader FROM roleless")
    for command in COMMANDS:
        ended = ort_mobile("lab", *command, "--database", login, code=ExitCode.USAGE)
        assert "may not do this" in ended.err, (command, ended)
        assert "roles.sql" in ended.err, (command, ended)
        assert ended.err.count("error:") == 1, (command, ended)


def test_a_database_of_a_later_release_is_refused_once(url: str, lab: Store) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("UPDATE alembic_version SET version_num = 'v9999'")
    for command in COMMANDS:
        ended = ort_mobile("lab", *command, "--database", url, code=ExitCode.USAGE)
        assert "the schema v9999" in ended.err, (command, ended)
        assert "update ort-mobile" in ended.err, (command, ended)
        assert ended.err.count("error:") == 1, (command, ended)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"UPDATE alembic_version SET version_num = '{REVISION}'")


def test_what_a_migration_grants_needs_an_attack(url: str, lab: Store) -> None:
    login = with_roles(url, "granted", "ort_mobile_reader")
    for grant, named in (
        ("CREATE FUNCTION lab_new() RETURNS int LANGUAGE sql AS 'SELECT 1'", "function lab_new"),
        ("CREATE TABLE added (n int); GRANT INSERT ON added TO ort_mobile_reader", "reader on added"),
        ("GRANT UPDATE (median_ns) ON runs TO ort_mobile_reader", "UPDATE.* runs"),
    ):
        with psycopg.connect(url) as owner, psycopg.connect(login) as connection:
            owner.execute(grant)
            owner.commit()
            with pytest.raises(AssertionError, match=named):
                found_attacks(connection, "reader")
            connection.rollback()
            owner.execute("DROP FUNCTION IF EXISTS lab_new(); DROP TABLE IF EXISTS added")


def test_two_logins_cannot_change_what_the_other_measured(url: str, store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, ["rig:0", "rig:1"], 2)
    lefts, rights = (with_roles(url, login, "ort_mobile_agent") for login in ("left", "right"))
    with open_store(lefts) as left, open_store(rights) as right:
        sessions = (host_session(left, "hl", ["rig:0"]), host_session(right, "hr", ["rig:1"]))
        assert [session.next_job(f"rig:{number}", ()) for number, session in enumerate(sessions)] == ["c1", "c1"]
        assert add(left, "rig:0/m", "rig:0", "hl")
        assert add(right, "rig:1/m", "rig:1", "hr")
        before = contents(url)
        for mine, session, device, host in ((left, sessions[0], "rig:1", "hr"), (right, sessions[1], "rig:0", "hl")):
            assert not add(mine, f"{device}/m", device, host), "it is there already"
            with pytest.raises(PipelineError, match=f"no lease of {device}"):
                add(mine, f"{device}/m", device, host, number=1)
            with pytest.raises(SessionLost, match=device):
                session.call("lab_change", "c1", device, "failed", 0, "")
        assert contents(url) == before
        for session in sessions:
            session.close()
