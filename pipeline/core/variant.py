"""Variant (how a model is to be converted) and Artifact (what came of it)."""

from collections import Counter
from collections.abc import Iterable
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


class Way(StrEnum):
    """How a provider-aware file came to be: by our splice, or saved by a session with the real provider."""

    SPLICED = "spliced"
    LIBRARY = "library"
    INSTALLED = "installed"


class AwareBy(msgspec.Struct, frozen=True, kw_only=True):
    """What made a provider-aware file. `release` and `sha256` are those of the library, or of the installed wheel.

    `rules` is the release whose rules decided for a later one that has none of its own.
    """

    way: Way
    release: str = ""
    sha256: str = ""
    rules: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def text(self) -> str:
        """In words: spliced; saved by libonnxruntime 1.29.0 (sha256 1fbfff77a79d)."""
        if self.way is Way.SPLICED:
            return f"spliced, by the rules of {self.rules}" if self.rules else "spliced"
        if self.way is Way.INSTALLED:
            return f"saved by the installed onnxruntime {self.release}"
        return f"saved by libonnxruntime {self.release} (sha256 {self.sha256[:12]})"


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """The ORT format file that one variant of one model gave.

    `operators` counts "domain:op" in the main graph (the default domain is ai.onnx); `source_operators` counts those
    of the prepared model. `semantic_digest` is equal for the same graph and weights whatever the container says.
    `unreplayable` names the recorded fusions that no release can replay (rules.UNREPLAYABLE); it then runs unfused.
    `session_options` are the session config entries that the app must set for this file to do what was measured.
    `claimed` counts the nodes kept for each provider that the variant is aware of; `notes` are warnings about them, and
    `aware_by` says what made the file (None for one that is aware of no provider).
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
    aware_by: AwareBy | None = None


def aware_lines(artifacts: Iterable[Artifact]) -> list[str]:
    """How provider-aware artifacts were made, one line for each way; none where there are none."""
    counted = Counter(artifact.aware_by.text for artifact in artifacts if artifact.aware_by)
    return [f"provider-aware artifacts {text}: {count}" for text, count in counted.items()]
