"""A phone during a campaign: leased to one, its settings changed for runs and restored after them.

What is changed is noted on the device before it is changed, and the note goes when it is restored: so the next one who
opens the device restores what a killed process could not.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
from typing import BinaryIO

from device_runner.adb.link import Link, LinkError, Server, script
from device_runner.device import Waiting, no_waiting
from device_runner.errors import UnavailableError
from device_runner.files import own_folder_errors, state_folder

log = logging.getLogger(__name__)

FIXED_PERFORMANCE = """
mkdir -p "$1" && : > "$1/changed-fixed-performance" || exit 1
cmd power set-fixed-performance-mode-enabled true && exit 0
rm -f "$1/changed-fixed-performance"; exit 1
"""
"""API 30 and later: clocks bounded from both sides at what can be sustained. Few phones but Pixels have it."""

SCREEN_ON = """
mkdir -p "$1" || exit 1
old=$(settings get global stay_on_while_plugged_in) || exit 1
case "$old" in *[!0-9]*|"") old=0 ;; esac
[ -s "$1/changed-stay-on" ] || echo "$old" > "$1/changed-stay-on" || exit 1
svc power stayon true && input keyevent KEYCODE_WAKEUP
"""
"""Awake while there is power, whatever kind; the setting is a set of bits, one for each kind."""

RESTORE = """
cd "$1" 2>/dev/null || exit 0
left=0
if [ -e changed-fixed-performance ]; then
  cmd power set-fixed-performance-mode-enabled false && rm -f changed-fixed-performance || left=1
fi
if [ -e changed-stay-on ]; then
  settings put global stay_on_while_plugged_in "$(cat changed-stay-on)" && rm -f changed-stay-on || left=1
fi
exit $left
"""

FIRST_FIXED_PERFORMANCE_API = 30


def hold(link: Link, root: str, text: str) -> str:
    """Change a setting by one of the scripts above; "" or what the device says against it. Raises LinkError."""
    output = link.shell(script(text, root))
    said = (output.stderr or output.stdout)[:300].decode("utf-8", "replace").strip()
    return "" if output.code == 0 else said or f"exit code {output.code}"


def restore(link: Link, root: str) -> None:
    """Make every noted setting what it was before; a warning for what will not. Raises LinkError."""
    output = link.shell(script(RESTORE, root))
    if output.code:
        said = output.stderr[:300].decode("utf-8", "replace").strip()
        log.warning("%s: settings could not be restored, and will be tried again: %s", link.serial, said)


def restore_quietly(link: Link, root: str) -> None:
    """As `restore`, where nobody can be told any more that the device is gone: the note stays for the next time."""
    try:
        restore(link, root)
    except LinkError as error:
        log.warning("%s: settings could not be restored, and will be at the next start: %s", link.serial, error)


LOOPBACK = ("127.0.0.1", "localhost", "::1")

OF_ONE_SERVER = re.compile(r"emulator-\d+|(127\.\d+\.\d+\.\d+|localhost|\[?::1\]?):\d+")
"""Serials that mean something else for a server behind a tunnel."""


def lease_key(server: Server, serial: str) -> str:
    """What tells devices apart: one on the network or on USB is the same by whichever server of this computer."""
    here = server.host in LOOPBACK
    if here and not OF_ONE_SERVER.fullmatch(serial):
        return serial
    return f"{'127.0.0.1' if here else server.host}:{server.port} {serial}"


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def take_lease(key: str, name: str, waiting: Waiting = no_waiting) -> BinaryIO:
    """The lock of a device, held until it is closed or the process ends; raises UnavailableError when another has it.

    `key` is what tells devices apart (`lease_key`), `name` how messages call it. While another has it, `waiting` is
    asked again and again; the device itself is left in peace.
    """
    folder = state_folder() / "leases"
    path = folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with own_folder_errors(folder, "ORT_MOBILE_STATE"):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    with contextlib.ExitStack() as opened:
        opened.callback(file.close)
        while not _locked(file):
            why = f"process {path.read_text(errors='replace')[:20] or 'unknown'} of this computer runs on it"
            if not waiting(why):
                remedy = "wait for it (--wait SECONDS), or end that process"
                raise UnavailableError(f"{name} is in use", why=why, remedy=remedy)
        opened.pop_all()
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file
