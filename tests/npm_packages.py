"""npm packages that tests need, fetched once."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from device_runner.files import cache_folder


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
