"""`ort-mobile` with phones of a farm: first a JSON of serials and their folders, then ort-mobile's own arguments.

The phones share this computer's file system, so that each needs a folder of its own where a real one has its usual; and
they are this computer, so that its probe runs on them whatever they say that they are.
"""

import json
import sys
from pathlib import Path

from device_runner.adb import device
from device_runner.adb.link import Link
from device_runner.build import build_probe
from device_runner.device import Waiting
from device_runner.local import wheel_library
from pipeline.cli.main import main


def use_folders(roots: dict[str, str], probe: Path | None = None) -> None:
    """Open each phone with its own folder, and with another probe than ours where one is given."""

    class FarmDevice(device.AdbDevice):
        def __init__(self, link: Link, *, name: str, waiting: Waiting) -> None:
            tools = (probe or build_probe(), wheel_library())
            super().__init__(link, name=name, root=roots[link.serial], tools=tools, waiting=waiting)

    device.AdbDevice = FarmDevice  # type: ignore[misc, assignment]  # for this process only


if __name__ == "__main__":
    use_folders(json.loads(sys.argv.pop(1)))
    sys.exit(main())
