"""Java libraries and tools out of Maven Central, each set in a folder that is made once, then taken from the cache.

They are fetched by `mvn`, which knows the machine's mirrors and checks checksums. What cannot be had is a skip that
says why.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from device_runner.files import cache_folder

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
FETCH_SECONDS = 900

DEPENDENCY = """\
<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</dependency>
"""
EXCLUSION = "<exclusions><exclusion><groupId>{0}</groupId><artifactId>{1}</artifactId></exclusion></exclusions>"
PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""


def needs(*programs: str) -> None:
    """Skip, with the reason, where one of these programs of a JDK or of Maven is missing."""
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"no {program}: install {'Maven' if program == 'mvn' else 'a JDK'}")


def jars(*coordinates: str, alone: bool = False, without: str = "") -> list[Path]:
    """The files of `group:artifact:version` and, unless `alone`, of all that they need but `without`."""
    needs("mvn", "java")
    key = hashlib.sha256(f"{PLUGIN} {' '.join(coordinates)} {alone} {without}".encode()).hexdigest()[:16]
    folder = cache_folder() / "jars" / key
    if not folder.is_dir():
        _fetch(folder, coordinates, "*:*" if alone else without)
    return sorted(folder.iterdir())


def _fetch(folder: Path, coordinates: Sequence[str], without: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".mvn-") as name:
        work = Path(name)
        exclusion = EXCLUSION.format(*without.split(":")) if without else ""
        wanted = "".join(DEPENDENCY.format(*one.split(":"), exclusion) for one in coordinates)
        (work / "pom.xml").write_text(PROJECT.format(wanted))
        command = ["mvn", "-B", "-q", "-C", PLUGIN, f"-DoutputDirectory={work / 'found'}"]
        try:
            done = subprocess.run(
                command, cwd=work, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.skip(f"jars cannot be fetched: {coordinates[0]} took more than {FETCH_SECONDS} s")
        if done.returncode:
            pytest.skip(f"jars cannot be fetched: {_reason(done.stdout)}")
        with contextlib.suppress(OSError):  # another process was faster
            (work / "found").rename(folder)


def _reason(said: str) -> str:
    """Maven's own first line of an error."""
    return next((line for line in said.splitlines() if "ERROR" in line), said.strip()[-300:])


def classpath(*parts: Path | Sequence[Path]) -> str:
    """A class path of these files and folders."""
    return os.pathsep.join(str(path) for part in parts for path in ([part] if isinstance(part, Path) else part))


def run(*command: str | Path, folder: Path, fails: bool = False) -> str:
    """What a program writes; the test fails with it where the program does, unless that is wanted."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert bool(done.returncode) == fails, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + (done.stderr if fails else "")
