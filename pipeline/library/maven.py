"""Fetches one file of Maven Central: by the user's own `mvn`, or by plain HTTPS where there is none.

`mvn` knows the user's mirrors and proxies (settings.xml) and checks the repository's checksums. Plain HTTPS honours
HTTPS_PROXY and its like, and ORT_MOBILE_MAVEN, the address of a repository in place of Maven Central.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from device_runner.files import public_address, scratch_folder
from pipeline.core.errors import MissingError

log = logging.getLogger(__name__)
Say: TypeAlias = Callable[[str], None]
"""Takes a line that says what is being done; fetching takes minutes."""

CENTRAL = "https://repo1.maven.org/maven2"
MIRROR_VARIABLE = "ORT_MOBILE_MAVEN"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_SECONDS = 600
ANSWER_SECONDS = 30
MAX_BYTES = 1 << 30
CHECKSUM_BYTES = 4096
METADATA_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
NOT_FOUND = 404
OFFLINE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})
LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])(:|/|$)")
CHECKSUMS = ("sha512", "sha256", "sha1")
"""What repositories keep beside a file, the strongest first. All have SHA-1, newer releases on Central the others."""

REASON = re.compile(
    r"(Could not .*?|\S+ was not found.*?|Checksum validation failed.*?)(?: \(|\. This failure| -> \[Help|$)",
    re.MULTILINE,
)
"""Where Maven says why it gave none."""
FETCHED = re.compile(r"Downloaded from \S+: (\S+)")
"""Where Maven says which address a file came from; it does not where it has the file already."""


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
        """Where it is in a repository."""
        return f"{self.folder}/{self.release}/{self.file}"

    @property
    def folder(self) -> str:
        """Where all its releases are."""
        return f"{self.group.replace('.', '/')}/{self.artifact}"


def silent(_: str) -> None:
    """Say nothing."""


def by_client(wanted: Coordinates, say: Say = silent) -> tuple[bytes, str]:
    """The file by `mvn`, and the repository that it came from; raises MissingError with Maven's own reason.

    `mvn` refuses a file with a wrong checksum (-C).
    """
    client = shutil.which("mvn")
    if client is None:
        raise MissingError("mvn is not on PATH")
    with scratch_folder() as folder:
        say(f"asking mvn for {wanted.group}:{wanted.artifact}:{wanted.release} (at most {FETCH_SECONDS} seconds)")
        artifact = f"-Dartifact={wanted.group}:{wanted.artifact}:{wanted.release}:{wanted.ending}"
        output = run([client, "-B", "-C", PLUGIN, artifact, f"-DoutputDirectory={folder}"], folder, "Maven", REASON)
        path = Path(folder, wanted.file)
        if not path.is_file():
            raise MissingError("Maven gave no file")
        addresses = [address for address in FETCHED.findall(output) if address.endswith(wanted.path)]
        source = (
            public_address(addresses[0].removesuffix(f"/{wanted.path}")) if addresses else "Maven's local repository"
        )
        return path.read_bytes(), source


def run(command: list[str], folder: Path, what: str, reason: re.Pattern[str]) -> str:
    """What a registry's client prints in a folder; raises MissingError with the first line that says why it failed."""
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
        line = reason.search(done.stdout + done.stderr)
        why = line.group(1)[:300] if line else f"exit code {done.returncode}"
        raise MissingError(f"{what} gave none", why=why)
    return done.stdout


class NotPublishedError(MissingError):
    """A repository does not have a release; `releases` are those that it names, oldest first."""

    def __init__(self, what: str, *, why: str, releases: tuple[str, ...]) -> None:
        super().__init__(what, why=why)
        self.releases = releases


def by_https(wanted: Coordinates, say: Say = silent) -> tuple[bytes, str]:
    """The file by HTTPS, and the repository's address; raises MissingError with what the server said.

    The file is compared with the checksum beside it.
    Plain HTTP, which anyone between can change, is for a mirror that ORT_MOBILE_MAVEN names only, with a warning unless
    it is on this computer.
    """
    base = (os.environ.get(MIRROR_VARIABLE) or CENTRAL).rstrip("/")
    if not re.match(r"https?://[^/]", base):
        raise MissingError(f"{MIRROR_VARIABLE} is no address", why=base, remedy=f"write one such as {CENTRAL}")
    if base.startswith("http:") and not LOOPBACK.match(base):
        log.warning("%s is not encrypted: who is between here and there can change what is fetched", base)
    address = f"{base}/{wanted.path}"
    say(f"fetching {address}")
    try:
        content = _get(address)
    except urllib.error.HTTPError as error:
        raise _refused(error, base, wanted) from error
    say(f"fetched {len(content):,} bytes")
    for kind in CHECKSUMS:
        try:
            noted = _get(f"{address}.{kind}", CHECKSUM_BYTES).decode("ascii", "replace").split()
        except (MissingError, urllib.error.HTTPError):
            continue
        checked = _checked(content, kind, noted[0].lower() if noted else "", address)
        say(f"its {kind} is the one that {base} names")
        return checked, public_address(base)
    raise MissingError(f"{base} has no checksum of {wanted.file}", remedy="it is not used: fetch it by `mvn`")


def _refused(error: urllib.error.HTTPError, base: str, wanted: Coordinates) -> MissingError:
    if error.code != NOT_FOUND:
        return MissingError(f"{base} answers {error.code} {error.reason}", where=f"{base}/{wanted.path}")
    try:
        listed = _get(f"{base}/{wanted.folder}/maven-metadata.xml", METADATA_BYTES).decode("utf-8", "replace")
    except (MissingError, urllib.error.HTTPError):
        listed = ""
    releases = tuple(re.findall(r"<version>(\d{1,4}\.\d{1,4}\.\d{1,4})</version>", listed))
    why = f"it answers 404; the newest that it has are {', '.join(releases[-5:])}" if releases else "it answers 404"
    return NotPublishedError(f"{base} has no {wanted.file}", why=why, releases=releases)


def _checked(content: bytes, kind: str, wanted: str, address: str) -> bytes:
    digest = hashlib.new(kind, content).hexdigest()
    if digest != wanted:
        raise MissingError(
            "what was fetched is not what the repository says",
            where=address,
            why=f"its {kind} is {digest}, the repository's is {wanted[:128] or 'empty'}",
            remedy="try again; if it stays so, something between here and the repository changes files",
        )
    return content


def _get(address: str, limit_bytes: int = MAX_BYTES) -> bytes:
    """A file of a server, whole, within FETCH_SECONDS; raises MissingError, and HTTPError for what it refuses."""
    deadline = time.monotonic() + FETCH_SECONDS
    content = bytearray()
    try:
        with urllib.request.urlopen(address, timeout=min(ANSWER_SECONDS, FETCH_SECONDS)) as answer:  # noqa: S310 - https or http, see by_https
            if address.startswith("https:") and not answer.url.startswith("https:"):
                raise MissingError(f"{address} leads to an address that is not encrypted", why=answer.url)
            length = int(answer.headers.get("Content-Length") or 0)
            while len(content) <= limit_bytes and (chunk := answer.read1(CHUNK_BYTES)):
                content += chunk
                if time.monotonic() > deadline:
                    raise MissingError(
                        f"{address} is too slow", why=f"{len(content):,} bytes came within {FETCH_SECONDS} seconds"
                    )
    except urllib.error.HTTPError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(address, error) from error
    if len(content) > limit_bytes or (length and len(content) != length):
        raise MissingError(f"{address} came cut off or too large", why=f"{len(content)} of {length} bytes")
    return bytes(content)


def _unreachable(address: str, error: Exception) -> MissingError:
    reason = getattr(error, "reason", error)
    offline = isinstance(reason, socket.gaierror) or getattr(reason, "errno", 0) in OFFLINE
    what = f"no network: {urlsplit(address).hostname} cannot be reached" if offline else f"{address} cannot be fetched"
    return MissingError(what, why=str(reason), remedy="check the network, and HTTPS_PROXY where there is a proxy")
