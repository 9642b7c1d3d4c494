"""Phones in a folder: launches of a real app's classes in a JVM, with drivers that end it, and their endings."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.features.android.package import SIGNATURES, java_sources
from tests.features.android.samples import CPU, JAVAC, NNAPI, WEBGPU, manifest, needs_java, shipped, signature

HERE = Path(__file__).parent
ASSET = "models/m.basic-fixed.ort"
JVM = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-CreateCoredumpOnCrash",
    "-XX:ErrorFile=/dev/null", "-XX:-UsePerfData",
)  # fmt: skip

EXIT_SELF, SIGNALED, CRASH_NATIVE, ANR, USER_REQUESTED = 1, 2, 5, 6, 10
"""Android's reasons for the end of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The classes of a released model with an app around them, and what they are given."""

    classes: Path
    library: Path
    assets: Path
    outputs: Path


def build(folder: Path, **more: object) -> App:
    """Compile what `release android` writes of one model, the app and the fake phone."""
    needs_java()
    import hashlib

    model, outputs = b"a model", np.linspace(-1, 3, 128, dtype=np.float32) ** 3
    assets = folder / "assets"
    (assets / "assets").mkdir(parents=True)
    (assets / "assets/m.basic-fixed.ort").write_bytes(model)
    table = manifest([shipped(runs=(NNAPI, WEBGPU, CPU))], [signature()])
    texts = java_sources(table, "phone", "com.example.demo", "assets", **more)  # type: ignore[arg-type]
    digest = hashlib.sha256(model).hexdigest()
    sources = folder / "sources/com/example/demo"
    sources.mkdir(parents=True)
    for name, text in texts.items():
        (sources / name).write_text(text.replace("2" * 64, digest))
    classes = folder / "classes"
    files = [*map(str, sources.glob("*.java")), *map(str, (HERE / "java").rglob("*.java"))]
    command = [*JAVAC, "-nowarn", "-sourcepath", str(SIGNATURES), "-d", str(classes), *files]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:2000]
    library = folder / "libfault.so"
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "fault.c")], check=True)
    (folder / "outputs").write_bytes(outputs.tobytes())
    return App(classes=classes, library=library, assets=assets, outputs=folder / "outputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one launch of an app came to: its exit code (negative for a signal), and what it said."""

    code: int
    lines: tuple[str, ...]
    errors: str

    def said(self, word: str) -> list[str]:
        """What stands behind a word in its lines."""
        return [line.partition(" ")[2] for line in self.lines if line.partition(" ")[0] == word]

    @property
    def way(self) -> str:
        """The session options that the app got; "" where it died before."""
        return next(iter(self.said("way")), "")

    @property
    def events(self) -> list[str]:
        """The kinds of events, each with its way."""
        found = (re.search(r'"way":"([^"+]*)[^"]*","event":"(\w+)"', line) for line in self.said("event"))
        return [f"{match[2]} {match[1]}".strip() for match in found if match]

    @property
    def is_whole(self) -> bool:
        """Whether the app ended itself."""
        return self.code == 0 and self.lines[-1:] == ("end",)


@dataclass(slots=True, kw_only=True)
class Phone:
    """A phone with an app: its storage lasts from launch to launch, and Android remembers how a process ended."""

    app: App
    storage: Path
    level: int = 34
    ended: str = ""
    boot: int = 3
    properties: dict[str, object] = field(default_factory=dict)

    def launch(self, faults: str = "", *, seconds: float = 60, user_waits: float = 0, **more: object) -> Launch:
        """Start the app; after `user_waits` seconds without an end, a user ends it."""
        self.storage.mkdir(exist_ok=True)
        given = {
            "storage": self.storage, "assets": self.app.assets, "outputs": self.app.outputs, "faults": faults,
            "faults.library": self.app.library, "level": self.level, "ended": self.ended, "boot_count": self.boot,
            "java.io.tmpdir": self.storage, **self.properties, **more,
        }  # fmt: skip
        words = [f"-D{name}={str(value).lower() if value is True else value}" for name, value in given.items()]
        command: Sequence[str] = ["java", *JVM, *words, "-cp", str(self.app.classes), "App"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        killed = False
        try:
            output, errors = process.communicate(timeout=user_waits or seconds)
        except subprocess.TimeoutExpired:
            killed = True
            process.kill()
            output, errors = process.communicate()
            assert user_waits, f"the app hangs: {output}"
        self.ended = f"{process.pid},{self._reason(process.returncode, killed)},{int(time.time() * 1000)}"
        return Launch(code=process.returncode, lines=tuple(output.splitlines()), errors=errors)

    @staticmethod
    def _reason(code: int, killed: bool) -> str:
        if killed:
            return f"{USER_REQUESTED},0"
        if code == -signal.SIGKILL:
            return f"{SIGNALED},9"
        return f"{CRASH_NATIVE},{-code}" if code < 0 else f"{EXIT_SELF},{code}"

    @property
    def rows(self) -> str:
        """The file of rows."""
        return (self.storage / "com.example.demo.guard/M.rows").read_text()
