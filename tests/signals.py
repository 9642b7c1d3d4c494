"""Programs that hear Ctrl-C and hang-ups: a shell without job control starts background commands deaf to them."""

import signal
import sys

HEARD = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)

_START = f"""
import os, signal, sys
for number in {tuple(map(int, HEARD))}:
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

PYTHON_THAT_HEARS = (sys.executable, "-c", _START)
"""What stands in place of `python`: the process is the same, its signals are those of a program in a terminal."""
