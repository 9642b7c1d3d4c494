"""An agent in a process of its own that is started again when it dies, as systemd does: URL HOST DEVICES FILE.

The process that it forks is the agent; FILE has its id. DEVICES are `adb:*`, or numbers of rigs (16, 16-32).
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from device_runner import device
from pipeline.features.lab import agent as lab_agent
from pipeline.features.lab.hooks import read_hooks
from tests.device.farm_cli import use_folders
from tests.features.lab.farm import SCHEME, rigs, shared_identity

HOOKS = "ORT_MOBILE_LAB_HOOKS"

PHONES, PROBE = "LAB_PHONES", "LAB_PROBE"
"""Environment variables: JSON of the phones' serials with their folders, and the probe that runs there."""


def agent(url: str, host: str, names: tuple[str, ...]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    file = os.environ.get(HOOKS)
    lab_agent.work(url, names, stop, host=host, called=read_hooks(Path(file)) if file else None)


def chosen(devices: str) -> tuple[str, ...]:
    if devices.startswith("adb:"):
        use_folders(json.loads(os.environ[PHONES]), Path(os.environ[PROBE]))
        return (devices,)
    device.OPENERS[SCHEME] = "tests.features.lab.farm:open_rig"
    device.identity = shared_identity
    first, _, last = devices.rpartition("-")
    return rigs(int(last))[int(first or 0) :]


def main(url: str, host: str, devices: str, file: str) -> None:
    names = chosen(devices)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set():
        child = os.fork()
        if not child:
            try:
                agent(url, host, names)
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 # what systemd sees is that it ended
                print(f"{host}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
        Path(file).write_text(str(child))
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG) is None:
            if stopping.wait(0.2):
                os.kill(child, signal.SIGCONT)
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
