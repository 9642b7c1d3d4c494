"""Files of PyPI for tests by pip, which knows the machine's mirrors; what cannot be had is a skip by name."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


def download(package: str, folder: Path, *, source: bool = False, platform: str = "") -> Path:
    """The wheel of a package (`name==version`), or its source archive; from the folder where it is there already.

    `platform` where it is not that of this computer.
    """
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}" + (".tar.gz" if source else "-*.whl")
    if not list(folder.glob(pattern)):
        own = importlib.util.find_spec("pip")
        python = sys.executable if own else str(Path(sys.base_prefix) / "bin" / "python3")
        kind = f"--no-binary={name}" if source else "--only-binary=:all:"
        words = [python, "-m", "pip", "download", "-q", "--no-deps", kind, "-d", str(folder)]
        words += ["--platform", platform, "--python-version", "3.12"] if platform else []
        ended = subprocess.run([*words, package], capture_output=True, text=True, timeout=600)
        if ended.returncode:
            pytest.skip(f"the package index cannot be reached: {package}: {ended.stderr.strip()[-200:]}")
    return next(folder.glob(pattern))
