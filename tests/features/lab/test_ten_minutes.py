"""The ten minutes of docs/lab.md, as they stand there: a PostgreSQL with TLS and passwords, two agents, a campaign."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.postgres import PostgresServer, own_server

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.postgresql, pytest.mark.long]

LAB, HOST = "the-password-of-lab", "the-password-of-hosts"

SUDO = '#!/bin/sh\nunset PGHOSTADDR PGPASSFILE\nshift 2\nPGUSER=tester PGHOST=127.0.0.1 exec "$@"\n'
"""`sudo -u postgres COMMAND`: tests have a superuser of the cluster, not of this computer."""

RULES = "host all tester 127.0.0.1/32 trust\nhostssl lab all all scram-sha-256\n"
"""pg_hba.conf, with the line of the page."""


def blocks() -> list[list[str]]:
    """The commands of each block of the page, in its order."""
    text = (ROOT / "docs/lab.md").read_text()
    found = [match.splitlines() for match in re.findall(r"```text\n(.*?)```", text, re.DOTALL)]
    return [
        [line.strip().removeprefix("$ ").split("  #")[0].strip() for line in lines if line.strip()] for lines in found
    ]


@contextmanager
def server_with_tls(folder: Path, certificate: str) -> Iterator[PostgresServer]:
    """A server for the name that the page has, with the certificate that its command makes."""
    folder.chmod(0o755)
    subprocess.run(certificate.split(), cwd=folder, check=True, capture_output=True)
    (folder / "hba").write_text(RULES)
    (folder / "server.key").chmod(0o600)
    if os.geteuid() == 0:
        shutil.chown(folder / "server.key", "nobody")
    files = (f"ssl_cert_file={folder}/ca.pem", f"ssl_key_file={folder}/server.key", f"hba_file={folder}/hba")
    with own_server("ssl=on", *files) as server:
        yield server


def run(line: str, environment: Mapping[str, str], given: str = "") -> str:
    done = subprocess.run(
        ["sh", "-c", line], env=environment, cwd=ROOT, input=given, capture_output=True, text=True, check=False,
        start_new_session=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert "WARNING" not in done.stderr, (line, done.stderr)
    return done.stdout


@contextmanager
def host(name: str, line: str, environment: Mapping[str, str], folder: Path) -> Iterator[None]:
    """An agent on a computer of that name."""
    own = {f"ORT_MOBILE_{kind}": str(folder / name / kind) for kind in ("CACHE", "STATE")}
    command = ["unshare", "--uts", "sh", "-c", f"hostname {name} && exec {line}"]
    with (folder / f"{name}.log").open("w") as log:
        started = subprocess.Popen(command, env={**environment, **own}, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield
    finally:
        started.send_signal(signal.SIGTERM)
        assert started.wait(600) == 0, (folder / f"{name}.log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_the_ten_minutes_of_the_page_work_as_they_stand(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_up, (certificate,), tables, campaign, agent, submitting, *_ = blocks()
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    with server_with_tls(folder, certificate) as server, ExitStack() as hosts:
        hosts.callback(shutil.rmtree, folder)
        (folder / "sudo").write_text(SUDO)
        (folder / "sudo").chmod(0o755)
        (folder / "passwords").write_text(f"*:*:*:lab:{LAB}\n*:*:*:*:{HOST}\n")
        (folder / "passwords").chmod(0o600)
        environment = {
            **os.environ, "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PGHOSTADDR": server.address, "PGPORT": str(server.port), "PGPASSFILE": str(folder / "passwords"),
            "ORT_MOBILE_CACHE": str(folder / "cache"),
        }  # fmt: skip
        assert [line.split()[:3] for line in set_up] == [["sudo", "-u", "postgres"]] * 4
        for line in set_up:
            run(line, environment, f"{LAB}\n{LAB}\n" if "--pwprompt" in line else "")
        export, *others = tables
        url = re.fullmatch(r"export ORT_MOBILE_DATABASE='(.*)'", export)
        assert url
        database = url[1].replace("/etc/ort-mobile", str(folder))
        environment["ORT_MOBILE_DATABASE"] = database
        for line in (*others, others[-1].replace("host_a", "host_b")):
            said = run(line.replace("…", HOST), environment)
            assert "hosts: 0" in said or "lab status" not in line
        for login in ("host_a", "host_b"):
            as_host = {**environment, "ORT_MOBILE_DATABASE": database.replace("lab@", f"{login}@")}
            hosts.enter_context(host(login.replace("_", "-"), agent[0], as_host, folder))
        submit, status = (line for line in submitting if line.startswith("ort-mobile"))
        deadline, said = time.monotonic() + 600, ""
        while not all(f"local@host-{name}" in (said := run(status, environment)) for name in "ab"):
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        assert "submitted for 2 devices" in run(submit, environment)
        while "devices: 2 done" not in (said := run(status, environment)):
            assert time.monotonic() < deadline + 300, said
            time.sleep(1)
        (close,) = (line for line in campaign if line.startswith("ort-mobile lab close"))
        output = tmp_path_factory.mktemp("closed")
        said = run(f"{close} --output {output}", environment)
        assert (output / "bundle/manifest.json").is_file(), said
