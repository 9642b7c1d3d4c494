"""NNAPI's devices as values: what a phone, a driver profile and the probe's answer have in common."""

from enum import StrEnum

from device_runner.result import Struct


class DriverType(StrEnum):
    """Kinds of NNAPI devices; the numbers are in `TYPE_CODES`."""

    OTHER = "other"
    CPU = "cpu"
    GPU = "gpu"
    ACCELERATOR = "accelerator"


TYPE_CODES = {kind: code for code, kind in enumerate(DriverType, start=1)}

TYPES = {code: kind for kind, code in TYPE_CODES.items()}
"""As NNAPI numbers them; 0 is "unknown" there, and counts as other."""

NNAPI_API_LEVEL = 27
DEVICES_API_LEVEL = 29
"""API levels from which NNAPI is there, and from which it names its devices."""


class NnapiDevice(Struct, frozen=True, kw_only=True):
    """A device (a driver) of a phone's NNAPI. Its feature level is an API level up to 31, above 1000006 and more."""

    name: str
    type: DriverType
    feature_level: int
    version: str = ""
