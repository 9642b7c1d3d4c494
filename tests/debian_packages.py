"""Packages of Debian trixie for tests, fetched with apt into a folder of their own and only unpacked: no root needed.

The mirror is the one that this machine's apt uses; packages are checked with Debian's keyring as apt does it. What
cannot be had is a skip that says why.
"""

import contextlib
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from device_runner.files import cache_folder

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE = "trixie"


def unpacked(*names: str, with_dependencies: bool = True, suite: str = SUITE) -> Path:
    """A folder with the files of these packages (and all that they depend on); made once, then taken from the cache."""
    key = hashlib.sha256(f"{suite} {' '.join(names)} {with_dependencies}".encode()).hexdigest()[:16]
    folder = cache_folder() / "debian" / key
    if not folder.is_dir():
        _make(folder, names, with_dependencies, suite)
    return folder


def _make(folder: Path, names: tuple[str, ...], with_dependencies: bool, suite: str) -> None:
    missing = [tool for tool in ("apt-get", "dpkg-deb") if not shutil.which(tool)]
    if missing or not KEYRING.is_file():
        pytest.skip(f"packages of Debian {SUITE} cannot be fetched: {', '.join(missing) or KEYRING} is missing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".apt-") as name:
        root = Path(name)
        _apt_root(root, suite)
        _apt(root, "update")
        fetch = (
            ["install", "--yes", "--download-only", "--no-install-recommends"] if with_dependencies else ["download"]
        )
        _apt(root, *fetch, *names)
        tree = root / "tree"
        tree.mkdir()
        for archive in sorted((root / "cache/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(tree)], check=True)
        with contextlib.suppress(OSError):  # another process was faster
            tree.rename(folder)


def _apt_root(root: Path, suite: str = SUITE) -> None:
    for part in ("lists/partial", "cache/archives/partial", "etc"):
        (root / part).mkdir(parents=True)
    (root / "status").touch()
    (root / "etc/sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n")
    (root / "apt.conf").write_text(
        f'Dir::State "{root}"; Dir::State::lists "{root}/lists"; Dir::State::status "{root}/status";\n'
        f'Dir::Cache "{root}/cache"; Dir::Etc::sourcelist "{root}/etc/sources.list";\n'
        'Dir::Etc::sourceparts "-"; Dir::Etc::preferencesparts "-"; Acquire::Languages "none";\n'
        'Acquire::Retries "2"; Acquire::http::Timeout "20"; APT::Sandbox::User "";\n'
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";\n'
    )


def _mirror() -> str:
    """The first mirror with a suite of Debian itself that this machine's apt is set up with."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(path.read_text(errors="replace") for path in files if path.is_file())
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = re.search(r"(https?://\S*/debian)/?(?=\s|$)", "\n".join(lines))
    if not found:
        pytest.skip(f"packages of Debian {SUITE} cannot be fetched: this machine's apt knows no mirror of Debian")
    return found.group(1)


def _apt(root: Path, *arguments: str) -> None:
    environment = {"APT_CONFIG": str(root / "apt.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    command = ["apt-get", "-q", *arguments]
    place = root / "cache/archives"
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"packages of Debian {SUITE} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
