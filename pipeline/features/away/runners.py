"""What runs a package: the shell alone, or what a farm or a Mac takes, with what each adds to its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline import config as configs
from pipeline.features.away import apk, ddp, device_farm, ios
from pipeline.features.away.plan import MadePackage
from pipeline.features.away.runner_kinds import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What one of them adds to a package for a platform.

    `command` runs the package, and `session` is where it lies afterwards; both with the package's folder.
    """

    write: Callable[[MadePackage], None]
    command: str
    session: str
    platform: configs.Platform = configs.Platform.ANDROID


ADDITIONS = {
    Runner.DDP: Additions(
        write=ddp.write_ddp,
        command=f"sh {{package}}/{ddp.FOLDER}/{ddp.SUBMIT} DEVICE",
        session="the folder or archive that the farm brings back",
    ),
    Runner.ANDROID_TEST: Additions(
        write=apk.write_android_test,
        command=f"sh {{package}}/{apk.FOLDER}/{apk.RUN}",
        session="{package}/session",
    ),
    Runner.DEVICEFARM: Additions(
        write=device_farm.write_device_farm,
        command=f"sh {{package}}/{device_farm.FOLDER}/{device_farm.SUBMIT} PROJECT_ARN DEVICE_POOL_ARN",
        session="the archive of artifacts that the farm gives",
    ),
    Runner.IOS: Additions(
        write=ios.write_ios,
        platform=configs.Platform.IOS,
        command=f"build it on a Mac as {{package}}/{ios.FOLDER}/README.md says, then sh {{package}}/{ios.FOLDER}/"
        f"{ios.RUN} DEVICE PREFIX",
        session=f"{{package}}/{ios.FOLDER}/session",
    ),
}


def command_of(runner: Runner, platform: configs.Platform, package: str) -> str:
    """How a package is run, by who reaches the device with adb, a shell or a farm."""
    if runner in ADDITIONS:
        return ADDITIONS[runner].command.format(package=package)
    if platform is configs.Platform.ANDROID:
        there = f"/data/local/tmp/{Path(package).name}"
        return f"adb push {package} {there} && adb shell sh {there}/run.sh && adb pull {there}/session"
    return f"sh {package}/run.sh"


def session_of(runner: Runner, platform: configs.Platform, package: str) -> str:
    """Where the session of a package lies after that command: adb pulls it into the current folder."""
    if runner in ADDITIONS:
        return ADDITIONS[runner].session.format(package=package)
    return "session" if platform is configs.Platform.ANDROID else f"{package}/session"
