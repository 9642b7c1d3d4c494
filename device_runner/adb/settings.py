"""Settings of a phone that are changed for runs, and restored.

What is changed is noted on the device before it is changed, and the note goes when it is restored: so the next one who
opens the device restores what a killed process could not.
"""

import logging

from device_runner.adb.link import Link, script

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
    words = (output.stderr or output.stdout)[:300].decode("utf-8", "replace").strip()
    return "" if output.returncode == 0 else words or f"exit code {output.returncode}"


def restore(link: Link, root: str) -> None:
    """Make every noted setting what it was before; a warning for what will not. Raises LinkError."""
    output = link.shell(script(RESTORE, root))
    if output.returncode:
        words = output.stderr[:300].decode("utf-8", "replace").strip()
        log.warning("%s: settings could not be restored, and will be tried again: %s", link.serial, words)
