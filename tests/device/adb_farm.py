"""Real adbd programs (Debian's package) behind a real adb server of their own, never on the developer's port.

Each device is a folder: `bin` has scripts that answer like a phone's getprop, dumpsys and so on, from files in
`state`; everything else a shell sees is this computer. No root is needed: adbd runs from the unpacked package.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice
from tests.debian_packages import unpacked

PHONE_PROPERTIES = {
    "ro.build.version.sdk": "30",
    "ro.build.version.release": "11",
    "ro.product.cpu.abilist": "x86_64,arm64-v8a",
    "ro.product.manufacturer": "Example",
    "ro.product.model": "Phone One",
    "ro.soc.model": "SM8450",
    "ro.soc.manufacturer": "QTI",
    "ro.build.fingerprint": "example/one/one:11/ABC/1:user/release-keys",
}

BATTERY = """Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  status: 2
  level: 84
  scale: 100
  voltage: 4063
  temperature: 326
  technology: Li-ion
"""

THERMAL = """IsStatusOverride: false
Thermal Status: 0
Cached temperatures:
\tTemperature{mValue=25.6, mType=0, mName=AP, mStatus=0}
HAL Ready: true
"""

POWER = "POWER MANAGER (dumpsys power)\n  mWakefulness=Awake\n  mIsPowered=true\n  mStayOn=false\n"

SCRIPTS = {
    "getprop": 'value=\n[ -f "$PHONE/prop/$1" ] && IFS= read -r value < "$PHONE/prop/$1"\nprintf "%s\\n" "$value"\n',
    "dumpsys": '[ -f "$PHONE/dumpsys/$1" ] && exec cat "$PHONE/dumpsys/$1"\necho "Can\'t find service: $1" >&2\n',
    "logcat": '[ "$1" = -c ] && : > "$PHONE/log" || exec cat "$PHONE/log"\n',
}
"""A run starts a dozen of them: each is one process, which reads by itself or becomes `cat`."""

HASHING = """line=$(openssl sha256 -r "$1") || exit 1
echo "${line%% *}  $1"
"""
"""sha256sum where this computer has openssl: coreutils' takes four times as long, 0.1 seconds for each library."""


ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Before a command: it ends when the tests are killed. (Linux: with the thread that started it.)"""


def free_port() -> int:
    """A TCP port outside the range in which an adb server looks for emulators."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return
        if process.poll() is not None:
            break
        time.sleep(0.01)
    pytest.fail(f"nothing listens on port {port}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours with everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Phone:
    """One adbd with a folder of its own."""

    def __init__(self, folder: Path, properties: dict[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.serial = f"127.0.0.1:{self.port}"
        """Where the adb server joins it: another port where a proxy stands before it."""
        self.root = f"{folder}/tmp/ort-mobile"
        self.process: subprocess.Popen[bytes] | None = None
        self.system = {
            "LD_LIBRARY_PATH": f"{folder}/system/lib64",
            "ORT_MOBILE_ANDROID_SDK": properties.get("ro.build.version.sdk", ""),
            "ORT_MOBILE_NNAPI_PROFILE": f"{folder}/system/driver",
            "ORT_MOBILE_NNAPI_RECORD": f"{folder}/system/calls.jsonl",
        }
        """Where its system libraries are, and what those of Android that stand in for a phone's read."""
        scripts = SCRIPTS | ({"sha256sum": HASHING} if shutil.which("openssl") else {})
        for name, text in scripts.items():
            self.write(f"bin/{name}", f"#!/bin/sh\n{text}").chmod(0o755)
        for key, value in properties.items():
            self.write(f"prop/{key}", f"{value}\n")
        for name, text in {"battery": BATTERY, "thermalservice": THERMAL, "power": POWER}.items():
            self.write(f"dumpsys/{name}", text)
        (folder / "tmp").mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def says_free(self, kilobytes: int) -> None:
        """From now on df says so."""
        head = "Filesystem 1K-blocks Used Available Use% Mounted on"
        self.write("bin/df", f"#!/bin/sh\necho '{head}'\necho '/dev/x 1 1 {kilobytes} 9% /data'\n").chmod(0o755)

    def start(self) -> None:
        if self.process and self.process.poll() is None:
            return
        tree = unpacked("adbd")
        libraries = tree / "usr/lib/x86_64-linux-gnu"
        command = [
            *ENDS_WITH_US,
            str(libraries / "ld-linux-x86-64.so.2"), "--library-path", f"{libraries}:{libraries}/android",
            str(tree / "usr/lib/android-sdk/platform-tools/adbd"),
        ]  # fmt: skip
        environment = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "ADBD_PORT": str(self.port),
            "HOME": str(self.folder),
            "PHONE": str(self.folder),
            "LC_ALL": "C",
            **self.system,
        }
        with (self.folder / "adbd.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_for_port(self.port, self.process)

    def stop(self) -> None:
        if self.process:
            stop(self.process)


class Farm:
    """An adb server of its own, and the phones that are connected to it."""

    def __init__(self, folder: Path, adb: Sequence[str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.phones: list[Phone] = []
        self._adb = list(adb)
        self.environment = {
            "HOME": str(folder), "PATH": "/usr/bin:/bin", "ANDROID_ADB_SERVER_PORT": str(self.port),
            "ADB_USB": "0", "ADB_EMU": "0", "ADB_MDNS": "0",
        }  # fmt: skip
        self.start_server()

    def start_server(self) -> None:
        """Start the server; nothing where the code under test was faster."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [*ENDS_WITH_US, *self._adb, "-P", str(self.port), "nodaemon", "server"], env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for_port(self.port, self.server)

    def stop_server(self) -> None:
        """Kill the server; one that the code under test started meanwhile is told to end."""
        if self.server.poll() is None:
            stop(self.server)
        else:
            self.adb("kill-server")

    def adb(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._adb, "-P", str(self.port), *arguments], env=self.environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def phone(self, properties: dict[str, str] | None = None, before: Callable[[Phone], str] | None = None) -> Phone:
        """One more adbd, connected; without properties it is a plain Linux device.

        `before` puts something between the server and the adbd, and gives the serial under which it is reached.
        """
        phone = Phone(self.folder / f"phone-{len(self.phones)}", properties or {})
        self.phones.append(phone)
        phone.start()
        if before:
            phone.serial = before(phone)
        self.join(phone)
        return phone

    def join(self, phone: Phone) -> None:
        """Connect the server to a phone, from anew where it was lost."""
        end = time.monotonic() + 300
        self.adb("connect", phone.serial)
        while not self._ready_within(phone, 2.0):
            assert time.monotonic() < end, self.adb("devices")
            self.adb("disconnect", phone.serial)
            self.adb("connect", phone.serial)

    def _ready_within(self, phone: Phone, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (ready := self.adb("-s", phone.serial, "get-state").strip() == "device") is False:
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        return ready

    def close(self) -> None:
        for phone in self.phones:
            phone.stop()
        stop(self.server)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            self.adb("kill-server")  # one that the code under test started while ours was gone


Open = Callable[[Phone], AdbDevice]
"""Opens a phone of the farm for a test."""


@contextlib.contextmanager
def farm_in(folder: Path, adb: Sequence[str] = ()) -> Iterator[Farm]:
    """A farm that ends with the block; skips by name where adbd or an adb program cannot be had.

    `adb` is the command of another adb program than adbutils'.
    """
    if not shutil.which("setsid") or os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        pytest.skip("a real adbd is run on x86-64 Linux only")
    import adbutils

    try:
        program = adbutils.adb_path()
    except adbutils.AdbError as error:
        pytest.skip(f"no adb program: {error}")
    unpacked("adbd")
    farm = Farm(folder, adb or [program])
    try:
        yield farm
    finally:
        farm.close()
