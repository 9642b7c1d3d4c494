"""The values of `--for`, for the command line: what each runs a package by."""

from enum import StrEnum


class Runner(StrEnum):
    """What runs a package."""

    SHELL = "shell"
    DDP = "ddp"
    ANDROID_TEST = "android-test"
    DEVICEFARM = "devicefarm"
    IOS = "ios"


TITLES = {
    Runner.SHELL: "a shell of Android or Linux",
    Runner.DDP: "Google's Developer Device Platform",
    Runner.ANDROID_TEST: "an APK that instruments itself",
    Runner.DEVICEFARM: "AWS Device Farm, by that APK",
    Runner.IOS: "an app for iPhones, as an Xcode project",
}
