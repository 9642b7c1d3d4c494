"""Libonnxruntime out of onnxruntime's wheels for Linux, fetched by pip, which compares each file with a digest.

The digest is the known one of the release (`known_digests`), else the one that the package index states: that shows
that a file came whole, not that it is what was released, and whoever uses it is warned.
"""

import ast
import base64
import html
import importlib.metadata
import importlib.util
import logging
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from device_runner import files as runner_files
from device_runner import safe_text, untrusted_files
from device_runner.errors import UnavailableError
from device_runner.library import LIBRARY, MACHINES, MAX_BYTES, known_digests, wheel_folder

log = logging.getLogger(__name__)

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
"""glibc levels that onnxruntime's wheels were built for (1.19 to 1.31), newest first."""

WHEEL_LIBRARY = re.compile(r"onnxruntime/capi/libonnxruntime\.so\.\d[\d.]*")
SECONDS = 600.0
ANSWER_SECONDS = 30
PAGE_BYTES = 64 << 20
"""Most that is read of an index's page; that of onnxruntime has one megabyte."""

INDEX = "https://pypi.org/simple"
"""What pip asks where nothing else is configured."""
PAGE_TYPES = "application/vnd.pypi.simple.v1+html, text/html;q=0.5"
STATED = re.compile(r"""href=["'][^"'#]*?(onnxruntime-[^/"'#]+\.whl)#sha256=([0-9a-f]{64})["'&]""")
"""A file of an index's page with its digest (PEP 503)."""

SOURCE = "source.txt"
"""Beside a library: which indexes were asked for it."""


def _pip() -> tuple[str, ...]:
    """The pip of this environment, else that on PATH: environments of uv and `venv --without-pip` have none."""
    program = None if importlib.util.find_spec("pip") else shutil.which("pip3") or shutil.which("pip")
    return (program,) if program else (sys.executable, "-m", "pip")


@dataclass(frozen=True, slots=True)
class _PackageSources:
    """The folders and indexes where `pip download` looks, and the certificates that it trusts ("": the system's)."""

    folders: list[str]
    indexes: list[str]
    certificates: str


def _package_sources(pip: Sequence[str]) -> _PackageSources:
    """As pip is configured: the environment's settings come before the command's, and these before pip's."""
    done = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, timeout=60, check=False)
    lines = (line.partition("=") for line in done.stdout.splitlines())
    listed = {name: str(ast.literal_eval(value)) for name, _, value in lines if value}
    settings = {
        key: next((listed[name] for part in (":env:", "download", "global") if (name := f"{part}.{key}") in listed), "")
        for key in ("find-links", "no-index", "index-url", "extra-index-url", "cert")
    }
    indexes = [*(settings["index-url"].split() or [INDEX]), *settings["extra-index-url"].split()]
    if settings["no-index"].split() not in ([], ["0"], ["false"], ["no"], ["off"]):
        indexes = []
    return _PackageSources(settings["find-links"].split(), indexes, "".join(settings["cert"].split()))


def foreign_library(abi: str, version: str = "") -> Path:
    """Libonnxruntime of the wheel for that ABI and release (the installed one's by default), from the cache or by pip.

    Raises UnavailableError where there is no such wheel, or it cannot be fetched.
    """
    release = version or importlib.metadata.version("onnxruntime")
    machine = MACHINES.get(abi)
    if machine is None:
        raise UnavailableError(
            f"there is no onnxruntime wheel for {abi}", remedy="name a library for it with --library"
        )
    target = wheel_folder() / f"{release}-{machine}" / LIBRARY
    if runner_files.are_sound(target.parent, [target.name]):
        return target
    with runner_files.own_folder_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    pip = _pip()
    sources = _package_sources(pip)
    asked = ", ".join(safe_text.public_address(address) for address in (*sources.folders, *sources.indexes))

    def unfetched(why: str) -> UnavailableError:
        return UnavailableError(
            f"the wheel of onnxruntime {release} for {machine} cannot be fetched",
            where=asked,
            why=why,
            remedy="check the network, or name a library for the device with --library",
        )

    wheel = re.compile(rf"onnxruntime-{re.escape(release)}-.*_{re.escape(machine)}\.whl")
    digests = [digest for name, digest in known_digests().items() if wheel.fullmatch(name)]
    if not digests:  # what the indexes state, with a warning
        for index in sources.indexes:
            try:
                page = _page(f"{index.rstrip('/')}/onnxruntime/", sources.certificates)
            except (OSError, HTTPException, ValueError) as error:
                raise unfetched(f"{safe_text.public_address(index)}: {error}") from error
            digests += [digest for name, digest in STATED.findall(html.unescape(page)) if wheel.fullmatch(name)]
        if not digests:
            raise unfetched(
                "the index has none of this release, or does not state the sha256 of its files: nothing can be checked"
            )
        log.warning(
            "onnxruntime %s is newer than the releases whose sha256 ort-mobile knows: its wheel was compared with what "
            "%s states, and with nothing else",
            release,
            asked,
        )
    with runner_files.scratch_folder(parent=target.parent) as folder:
        requirement = folder / "requirement.txt"
        requirement.write_text(
            " ".join([f"onnxruntime=={release}", *(f"--hash=sha256:{digest}" for digest in digests)])
        )
        platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
        command = [
            *pip,
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(folder),
            *platforms,
            "--require-hashes",
            "--requirement",
            str(requirement),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise unfetched(f"pip took longer than {SECONDS:.0f} s") from error
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode or not wheels:
            last = [line.strip()[:300] for line in done.stderr.splitlines() if line.strip()][-2:]
            raise unfetched("; ".join(last) or "no wheel")
        content = _library_in(wheels[0])
    with runner_files.own_folder_errors(target):
        (target.parent / SOURCE).write_text(asked, encoding="utf-8")  # without passwords
    runner_files.keep_noted(target, content)
    return target


def source_of(library: Path) -> str:
    """The indexes that were asked for a library of `foreign_library`."""
    try:
        return (library.parent / SOURCE).read_text(encoding="utf-8")
    except OSError:
        return "an index that was not noted"


def _page(address: str, certificates: str) -> str:
    """An index's page; raises OSError, HTTPException and ValueError, also for an address that is no HTTP."""
    parts = urlsplit(address)
    if parts.scheme not in ("https", "http"):
        raise ValueError("it is no address of an index")
    request = urllib.request.Request(safe_text.public_address(address), headers={"Accept": PAGE_TYPES})  # noqa: S310 - https or http
    if parts.username:  # urllib does not read it out of an address
        login = f"{parts.username}:{parts.password or ''}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
    context = ssl.create_default_context(cafile=certificates or None)
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=context) as answer:  # noqa: S310
        content: bytes = answer.read(PAGE_BYTES)
    return content.decode("utf-8", "replace")


def _library_in(wheel: Path) -> bytes:
    """The one library of a wheel; nothing else is unpacked, and no name in it counts."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if WHEEL_LIBRARY.fullmatch(name)]
            for name in names[:1]:
                untrusted_files.check_unpacked(archive.getinfo(name), MAX_BYTES)
            content = archive.read(names[0]) if names else b""
    except untrusted_files.ZIP_ERRORS as error:
        raise UnavailableError(
            "this wheel cannot be unpacked", where=wheel.name, why=str(error), remedy="fetch it again"
        ) from error
    if not names:
        raise UnavailableError(
            "this wheel has no libonnxruntime",
            where=wheel.name,
            why="wheels have a C library of their own from 1.19 on",
            remedy="name a library with --library",
        )
    return content
