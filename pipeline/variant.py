"""Variant (how a model is to be converted) and Artifact (what came of it)."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """Graph optimization levels by the names of ONNX Runtime's converter; `none` is its `disable`."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


class Style(StrEnum):
    """`fixed` saves the fused graph; `runtime` keeps it and records level 2 fusions for the device to replay."""

    FIXED = "fixed"
    RUNTIME = "runtime"


class Variant(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One way to convert a model. `providers` are the execution providers whose claims the optimizer must respect."""

    level: Level
    style: Style = Style.FIXED
    providers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The canonical name, as in `extended-fixed-nnapi`: used in configs, file names, logs, tables and tests."""
        parts = [self.level.value, self.style.value]
        parts += ["+".join(self.providers)] if self.providers else []
        return "-".join(parts)


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """The ORT format file that one variant of one model gave.

    `operators` counts "domain:op" in the main graph (the default domain is ai.onnx); `source_operators` counts those
    of the prepared model. `semantic_digest` is equal for the same graph and weights whatever the container says.
    `unreplayable` names the recorded fusions that no release can replay (rules.UNREPLAYABLE); it then runs unfused.
    `session_options` are the session config entries that the app must set for this file to do what was measured.
    `claimed` counts the nodes kept for each provider that the variant is aware of; `notes` are warnings about them.
    """

    model: str
    variant: Variant
    file: str
    size_bytes: int
    sha256: str
    semantic_digest: str
    operators: dict[str, int]
    source_operators: dict[str, int]
    session_options: dict[str, str] = {}
    unreplayable: tuple[str, ...] = ()
    claimed: dict[str, int] = {}
    notes: tuple[str, ...] = ()
