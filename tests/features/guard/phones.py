"""Phones in a folder: launches of a real app's classes in a JVM, with drivers that end it, and their endings."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runner.build import SOURCES as PROBE_SOURCES
from device_runner.build import build_trial
from device_runner.local import wheel_library
from pipeline.features.android.package import SIGNATURES, java_sources
from pipeline.features.android.protection import trial_name
from pipeline.release.app_fit import ROLLBACK
from tests.features.android.samples import CPU, JAVAC, NNAPI, WEBGPU, manifest, needs_java, shipped, signature
from tests.features.guard.models import desk

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
    jar: Path | None
    library: Path
    assets: Path
    outputs: Path
    private_key: Path
    natives: Path
    """The app's native libraries: ONNX Runtime and the helper, where it has one."""

    @property
    def path(self) -> str:
        """Where the JVM finds classes."""
        return ":".join(str(place) for place in (self.classes, self.jar) if place)


def keys(folder: Path) -> tuple[Path, str]:
    """The file of a private key, and its public one as classes have it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "key.pem").chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return folder / "key.pem", public.hex()


def run_java(arguments: Sequence[str]) -> str:
    """What a program in the JVM says; it must end well."""
    done = subprocess.run(["java", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_natives(folder: Path) -> None:
    """The native libraries of an app: the helper, NNAPI, and ONNX Runtime with bad drivers."""
    folder.mkdir()
    shutil.copy(build_trial(), folder / f"lib{trial_name('com.example.demo')}.so")
    compiler = (shutil.which("cc") or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    units = ("-I", str(PROBE_SOURCES), str(HERE / "driver.c"), str(HERE / "fault.c"))
    subprocess.run([*compiler, "-o", str(folder / "libonnxruntime.so"), *units, "-ldl"], check=True)
    subprocess.run([*compiler, "-x", "c", "/dev/null", "-o", str(folder / "libneuralnetworks.so")], check=True)


def build(folder: Path, jar: Path | None = None, *, helper: bool = False) -> App:
    """Compile what `release android` writes of one model, the app and the fake phone.

    With `jar` against ONNX Runtime's own classes, which run the model in place of the fake ones. With `helper` trials
    are made in processes of their own.
    """
    needs_java()
    runs = (NNAPI, WEBGPU, CPU)
    (folder / "desk").mkdir()
    made = desk(folder / "desk", runs)
    assets = folder / "assets"
    (assets / "assets").mkdir(parents=True)
    (assets / "assets/m.basic-fixed.ort").write_bytes(made.file.read_bytes())
    (assets / "assets/M.sample").write_bytes(made.test.data)
    table = manifest([shipped(runs=runs)], [signature()], rollback=ROLLBACK)
    samples = {"m": "assets/M.sample"}
    private, public = keys(folder)
    texts = java_sources(table, "phone", "com.example.demo", "assets", samples=samples, deny_key=public, helper=helper)
    digest = made.order.files[0].digests
    sources = folder / "sources/com/example/demo"
    sources.mkdir(parents=True)
    for name, text in texts.items():
        (sources / name).write_text(text.replace("2" * 64, digest))
    classes = folder / "classes"
    fakes = [path for path in (HERE / "java").rglob("*.java") if not jar or "onnxruntime" not in path.parts]
    found, signatures = ["-sourcepath", str(SIGNATURES)], folder / "signatures"
    if jar:
        shutil.copytree(SIGNATURES, signatures, ignore=shutil.ignore_patterns("ai"))
        found = ["-sourcepath", str(signatures), "-cp", str(jar)]
    command = [*JAVAC, "-nowarn", *found, "-d", str(classes), *map(str, (*sources.glob("*.java"), *fakes))]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr[:2000]
    library = folder / "libfault.so"
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "fault.c")], check=True)
    (folder / "outputs").write_bytes(made.outputs.tobytes())
    natives = folder / "natives"
    if helper and not jar:
        write_natives(natives)
    return App(
        natives=natives,
        jar=jar,
        classes=classes,
        library=library,
        assets=assets,
        outputs=folder / "outputs",
        private_key=private,
    )


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
        """The kinds of events, each with its way, but for races that wait: tests that are not of races hold none."""
        lines = (line for line in self.said("event") if "the phone is at work" not in line)
        found = (re.search(r'"way":"([^"+]*)[^"]*","event":"(\w+)"', line) for line in lines)
        return [f"{match[2]} {match[1]}".strip() for match in found if match]

    @property
    def is_whole(self) -> bool:
        """Whether the app ended itself."""
        return self.code == 0 and self.lines[-1:] == ("end",)


ENDINGS_KEPT = 16
"""What Android remembers of an app's processes (AppExitInfoTracker)."""


@dataclass(slots=True, kw_only=True)
class Phone:
    """A phone with an app: its storage lasts from launch to launch, and Android remembers how processes ended.

    `ended` has process, reason, status and milliseconds of each, the last first.
    """

    app: App
    storage: Path
    level: int = 34
    ended: list[str] = field(default_factory=list)
    boot: int = 3
    properties: dict[str, object] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def launch(
        self,
        faults: str = "",
        *,
        seconds: float = 60,
        user_waits: float = 0,
        child_faults: str | None = None,
        **more: object,
    ) -> Launch:
        """Start the app; after `user_waits` seconds without an end, a user ends it.

        Drivers fail as `faults` says, in processes of trials as `child_faults`, where that is given.
        """
        self.storage.mkdir(exist_ok=True)
        given = {
            "storage": self.storage, "assets": self.app.assets, "outputs": self.app.outputs, "faults": faults,
            "faults.library": self.app.library, "level": self.level, "boot_count": self.boot,
            "ended": ";".join(self.ended), "java.io.tmpdir": self.storage, "libraries": self.app.natives,
            **self.properties, **more,
        }  # fmt: skip
        words = [f"-D{name}={str(value).lower() if value is True else value}" for name, value in given.items()]
        command: Sequence[str] = ["java", *JVM, *words, "-cp", self.app.path, "App"]
        drivers = {
            **os.environ,
            "FAULTS": faults if child_faults is None else child_faults,
            "REAL_ORT": str(wheel_library()),
            **self.variables,
        }
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=drivers)
        killed = False
        try:
            output, errors = process.communicate(timeout=user_waits or seconds)
        except subprocess.TimeoutExpired:
            killed = True
            process.kill()
            output, errors = process.communicate()
            assert user_waits, f"the app hangs: {output}"
        ended = f"{process.pid},{self._reason(process.returncode, killed)},{int(time.time() * 1000)}"
        self.ended = [ended, *self.ended][:ENDINGS_KEPT]
        return Launch(code=process.returncode, lines=tuple(output.splitlines()), errors=errors)

    def wait_longer(self, milliseconds: int) -> None:
        """As if its user had ended the last process so much later."""
        *words, ended = self.ended[0].split(",")
        self.ended[0] = ",".join([*words, str(int(ended) + milliseconds)])

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
