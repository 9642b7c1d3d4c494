"""Fetches one file of Maven Central: by the user's own `mvn`, or by plain HTTPS where there is none.

`mvn` knows the user's mirrors and proxies (settings.xml) and checks the repository's checksums. Plain HTTPS honours
HTTPS_PROXY and its like, and ORT_MOBILE_MAVEN, the address of a repository in place of Maven Central.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import MissingError

CENTRAL = "https://repo1.maven.org/maven2"
MIRROR_VARIABLE = "ORT_MOBILE_MAVEN"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_SECONDS = 600
ANSWER_SECONDS = 30
MAX_BYTES = 1 << 30
CHECKSUMS = ("sha512", "sha256", "sha1")
"""What repositories keep beside a file, the strongest first. All have SHA-1, newer releases on Central the others."""

REASON = re.compile(r"(Could not [^(\n]*|\S+ was not found[^(\n]*|Checksum validation failed[^(\n]*)")
"""Where Maven says why it gave none."""


class Coordinates(NamedTuple):
    """A file of a Maven repository."""

    group: str
    artifact: str
    release: str
    ending: str

    @property
    def file(self) -> str:
        """Its name."""
        return f"{self.artifact}-{self.release}.{self.ending}"

    @property
    def path(self) -> str:
        """Where it lies in a repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.release}/{self.file}"


def by_client(wanted: Coordinates) -> bytes:
    """The file by `mvn`, which refuses one with a wrong checksum (-C); raises MissingError with Maven's own reason."""
    client = shutil.which("mvn")
    if client is None:
        raise MissingError("mvn is not on PATH")
    with tempfile.TemporaryDirectory(prefix="ort-mobile-maven-") as folder:
        artifact = f"-Dartifact={wanted.group}:{wanted.artifact}:{wanted.release}:{wanted.ending}"
        run([client, "-q", "-B", "-C", PLUGIN, artifact, f"-DoutputDirectory={folder}"], folder, "Maven", REASON)
        path = Path(folder, wanted.file)
        if not path.is_file():
            raise MissingError("Maven gave no file")
        return path.read_bytes()


def run(command: list[str], folder: str, what: str, reason: re.Pattern[str]) -> None:
    """Run a registry's client in a folder; raises MissingError with the first line that says why it gave nothing."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"{what} did not answer within {FETCH_SECONDS} seconds") from error
    if done.returncode:
        said = reason.search(done.stdout + done.stderr)
        raise MissingError(f"{what} gave none", why=said.group(1)[:300] if said else f"exit code {done.returncode}")


def by_https(wanted: Coordinates) -> bytes:
    """The file by HTTPS, held against the checksum beside it; raises MissingError with what the server said."""
    base = (os.environ.get(MIRROR_VARIABLE) or CENTRAL).rstrip("/")
    if not re.match(r"https?://", base):
        raise MissingError(f"{MIRROR_VARIABLE} is no address", why=base, remedy=f"write one such as {CENTRAL}")
    address = f"{base}/{wanted.path}"
    content = _get(address)
    for kind in CHECKSUMS:
        try:
            noted = _get(f"{address}.{kind}").decode("ascii", "replace").split()
        except MissingError:
            continue
        return _checked(content, kind, noted[0].lower() if noted else "", address)
    raise MissingError(f"{base} has no checksum of {wanted.file}", remedy="it is not used: fetch it by `mvn`")


def _checked(content: bytes, kind: str, wanted: str, address: str) -> bytes:
    found = hashlib.new(kind, content).hexdigest()
    if found != wanted:
        raise MissingError(
            "what was fetched is not what the repository says",
            where=address,
            why=f"its {kind} is {found}, the repository's is {wanted or 'empty'}",
            remedy="try again; if it stays so, something between here and the repository changes files",
        )
    return content


def _get(address: str) -> bytes:
    """A file of a server, whole; raises MissingError."""
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - https or http, see above
            length = int(answer.headers.get("Content-Length") or 0)
            content: bytes = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise MissingError(f"{address} answers {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise MissingError(f"{address} cannot be fetched", why=str(getattr(error, "reason", error))) from error
    if len(content) > MAX_BYTES or (length and len(content) != length):
        raise MissingError(f"{address} came cut off or too large", why=f"{len(content)} of {length} bytes")
    return content
