"""What a run was measured of, with and on, as texts by name, and what changed between two."""

from collections.abc import Mapping
from typing import Final

import msgspec

from device_runner.device import DeviceFacts
from device_runner.spec import RunSpec
from pipeline.campaign.record import Host, RunRecord
from pipeline.campaign.run_options import options_name

ARTIFACT, RELEASE, OPTIONS = "artifact", "ONNX Runtime", "session options"

INPUTS, DEVICE, SYSTEM, HOST = "inputs", "device", "system", "host"

DRIVER, MADE_WITH = "driven by", "made with"

TESTED: Final = (ARTIFACT, RELEASE, OPTIONS)
"""What a comparison is about: a change of these is a cause to be named."""

NOT_SETTINGS = frozenset({
    "id", "model", "model_sha256", "library", "options", "inputs", "labelled", "dimensions", "outputs_folder",
    "outputs_limit_bytes", "timeout_seconds", "log_level", "profile", "version",
})  # fmt: skip
"""Fields of a RunSpec that do not say how it measures."""

SETTINGS: Final = {name: f"measurement {name}" for name in RunSpec.__struct_fields__ if name not in NOT_SETTINGS}
"""The names of facts on how a run was measured, by the field of its RunSpec."""

ENVIRONMENT: Final = (INPUTS, *SETTINGS.values(), DEVICE, SYSTEM, HOST)
"""What must be the same for latencies of different days to be one history."""

NAMES: Final = (*TESTED, *ENVIRONMENT, DRIVER, MADE_WITH)
"""All, in the order in which they are shown; the computer that drives a phone is not its environment."""

ON_THIS_COMPUTER = ("local", "android-host:", "linux-host:")
"""How names of devices begin that run on the host itself: its processor and system are theirs."""

MAKERS = ("ort-mobile", "onnxruntime", "onnx")
"""Programs whose versions decide the bytes of artifacts; a bundle's manifest names them."""

Facts = dict[str, str]
"""Texts under the names above; a name is missing where nothing is known."""

NOT_KNOWN = "not known"


class ChangedFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that differs; "not known" for a side that was stored without it."""

    what: str
    before: str
    after: str


def facts_of_run(run: RunRecord) -> Facts:
    """The facts that a stored run has itself: its file, the release that ran it, options, inputs, settings."""
    tensors = [f"{tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in run.spec.inputs]
    sizes = [f"{name}={size}" for name, size in sorted(run.spec.dimensions.items())]
    settings = {fact: msgspec.to_builtins(getattr(run.spec, name)) for name, fact in SETTINGS.items()}
    texts = {
        ARTIFACT: run.spec.model_sha256 or "",
        RELEASE: run.result.ort_version,
        OPTIONS: options_name(run.spec.options),
        INPUTS: ", ".join([*tensors, *sizes]),
        # Without a text, setting what was not set would count as no change.
        **{
            fact: "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            for fact, value in settings.items()
        },
    }
    return {name: text for name, text in texts.items() if text}


def facts_of_place(device: str, facts: DeviceFacts | None, host: Host) -> Facts:
    """The facts of a device by its name, and of the host, which is the device itself or drives it."""
    texts = {}
    if facts:
        level = f"API {facts.api_level}" if facts.api_level else ""
        texts[DEVICE] = _joined(facts.manufacturer, facts.model, facts.soc)
        texts[SYSTEM] = _joined(facts.platform, facts.os_release, level, facts.fingerprint)
    role = HOST if device.startswith(ON_THIS_COMPUTER) else DRIVER
    texts[role] = _joined(host.system, host.machine, host.cpu, f"{host.cores} cores" if host.cores else "")
    return {name: text for name, text in texts.items() if text}


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedFact, ...]:
    """What differs, in the order of NAMES; what neither knows is no change."""
    return tuple(
        ChangedFact(what=name, before=before.get(name, NOT_KNOWN), after=after.get(name, NOT_KNOWN))
        for name in NAMES
        if before.get(name) != after.get(name)
    )
