"""Which run options are possible on which device, and why not the others. A table of rules, first hit is the reason.

Sources: NNAPI flags and API levels from ONNX Runtime's NNAPI documentation (releases 1.19 to 1.31, unchanged);
providers by platform from its build instructions.
"""

from collections.abc import Callable

from device_runner.device import DeviceFacts
from device_runner.spec import NnapiFlag, RunOptions

NNAPI_API_LEVEL = 27
NNAPI_DEVICES_API_LEVEL = 29

Rule = tuple[Callable[[RunOptions, DeviceFacts], bool], str]


def _nnapi(options: RunOptions) -> bool:
    return options.provider == "nnapi"


def _api_below(facts: DeviceFacts, level: int) -> bool:
    return facts.platform == "android" and 0 < facts.api_level < level


def _both_cpu_flags(options: RunOptions, _: DeviceFacts) -> bool:
    return {NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY} <= set(options.flags)


def _flag_needs_devices(flag: NnapiFlag) -> Callable[[RunOptions, DeviceFacts], bool]:
    return lambda options, facts: flag in options.flags and _api_below(facts, NNAPI_DEVICES_API_LEVEL)


RULES: tuple[Rule, ...] = (
    (lambda o, _: bool(o.flags) and not _nnapi(o), "flags are NNAPI's: {provider} takes options instead"),
    (_both_cpu_flags, "CPU_DISABLED and CPU_ONLY contradict each other"),
    (lambda o, f: _nnapi(o) and f.platform in ("ios", "macos"), "NNAPI is Android's: {platform} has CoreML"),
    (
        lambda o, f: o.provider == "coreml" and f.platform in ("android", "linux"),
        "CoreML is Apple's: not on {platform}",
    ),
    (lambda o, f: _nnapi(o) and _api_below(f, NNAPI_API_LEVEL), "API {api_level}: NNAPI needs 27"),
    (lambda o, f: _nnapi(o) and f.nnapi is False, "this device has no NNAPI"),
    (_flag_needs_devices(NnapiFlag.USE_NCHW), "API {api_level}: USE_NCHW needs 29"),
    (_flag_needs_devices(NnapiFlag.CPU_DISABLED), "API {api_level}: CPU_DISABLED needs 29, and is ignored below"),
)


def illegal(options: RunOptions, facts: DeviceFacts) -> str:
    """Why these options cannot run on that device, or "" when they can as far as its facts tell."""
    for applies, reason in RULES:
        if applies(options, facts):
            return reason.format(provider=options.provider, platform=facts.platform, api_level=facts.api_level)
    return ""
