"""Variant (how a model is to be converted) and Artifact (what came of it)."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from device_runner import spec as run_spec
from pipeline.core.documents import BuildName, OptionalAbi, OptionalChip, OptionalSha256, Precision
from pipeline.core.providers import QNN


class Level(StrEnum):
    """Graph optimization levels by the names of ONNX Runtime's converter; `none` is its `disable`."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


class Style(StrEnum):
    """`fixed` saves the fused graph; `runtime` keeps it and records level 2 fusions for the device to replay.

    `onnx` saves it as an ONNX file, which a full build optimizes further when it loads it; the others are ORT format.
    """

    FIXED = "fixed"
    RUNTIME = "runtime"
    ONNX = "onnx"

    @property
    def suffix(self) -> str:
        """What names of its files end in."""
        return ".onnx" if self is Style.ONNX else ".ort"


GREW, GREW_BYTES = 1.2, 256 << 10
"""A file is called grown that is so many times its model, and by more than what the container of a small one takes."""


def grew(size_bytes: int, original_bytes: int, least: int = GREW_BYTES) -> bool:
    """Whether a file is larger than what it was made of, by more than a reader would expect, and than `least` bytes."""
    return size_bytes > max(GREW * original_bytes, original_bytes + least) and original_bytes > 0


OWN_PRECISION = "float"
"""What configs and patterns call the precision that a model has without any change; in a variant it is ""."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to convert a model. `providers` are the execution providers whose claims the optimizer must respect.

    `precision` is a name of pipeline.passes.precisions; "" for the model's own. `chip` is the one whose NPU a context
    is for; "" for ORT format files.
    """

    level: Level
    style: Style = Style.FIXED
    providers: tuple[run_spec.Provider, ...] = ()
    precision: Precision = ""
    chip: OptionalChip = ""

    @property
    def name(self) -> str:
        """The canonical name: used in configs, file names, logs, tables and tests.

        As in `all-fixed-u8u8-nnapi`, and of a context as in `qnn-SM8650-u8s8qnn`.
        """
        return self._named(self.precision)

    def matches(self, pattern: str) -> bool:
        """Whether a pattern of a config means this variant: `basic-fixed` means it in every precision.

        `basic-fixed-float` means the model's own alone.
        """
        other = self._named(OWN_PRECISION if OWN_PRECISION in pattern and not self.precision else "")
        return fnmatchcase(self.name, pattern) or fnmatchcase(other, pattern)

    def _named(self, precision: str) -> str:
        providers = "+".join(self.providers)
        parts = [self.level.value, self.style.value, precision, providers]
        if self.chip:
            parts = [providers, self.chip, precision]
        return "-".join(part for part in parts if part)


def in_precision(model: str, precision: str) -> str:
    """The name of a model in a precision, as in `mnist@u8s8pc`; names of models have no @."""
    return f"{model}@{precision}" if precision else model


class Way(StrEnum):
    """How a provider-aware file came to be: a session saved it with our claims (`PLUGIN`) or with the provider."""

    PLUGIN = "plugin"
    LIBRARY = "library"
    INSTALLED = "installed"


class AwareBy(msgspec.Struct, frozen=True, kw_only=True):
    """What made a provider-aware file. `release` and `sha256` are those of the library, or of the installed wheel.

    `rules` is the release whose rules decided for a later one that has none of its own. `abi` is the library's; one
    without is for x86_64.
    """

    way: Way
    release: BuildName = ""
    sha256: OptionalSha256 = ""
    rules: BuildName = ""
    abi: OptionalAbi = ""

    @property
    def text(self) -> str:
        """In words: saved with our claims; saved by libonnxruntime 1.29.0 (sha256 1fbfff77a79d)."""
        if self.way is Way.PLUGIN:
            return f"saved with our claims, by the rules of {self.rules}" if self.rules else "saved with our claims"
        if self.way is Way.INSTALLED:
            return f"saved by the installed onnxruntime {self.release}"
        built = f" for {self.abi}" if self.abi else ""
        return f"saved by libonnxruntime {self.release}{built} (sha256 {self.sha256[:12]})"


class ConvertedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file that one optimization gave, whichever variant or target asked for it; its facts are as in `Artifact`."""

    size_bytes: int
    sha256: str
    semantic_digest: str
    operators: dict[str, int]
    unreplayable: tuple[str, ...] = ()
    unmappable: bool = False
    claimed: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    aware_by: AwareBy | None = None


class Artifact(ConvertedFile, frozen=True, kw_only=True):
    """The file that one variant of one model gave, in ORT format unless its style is `onnx`.

    `operators` counts "domain:op" in the main graph (the default domain is ai.onnx); `source_operators` counts those
    of the prepared model. `semantic_digest` is equal for the same graph and weights whatever the container says.
    `unreplayable` names the recorded fusions that no release can replay (rules.UNREPLAYABLE); it then runs unfused.
    `unmappable`: no session opens the file with its weights where they lie (guards.unmappable).
    `session_options` are the session config entries that the app must set for this file to do what was measured.
    `claimed` counts the nodes kept for each provider that the variant is aware of; `notes` are warnings about them, and
    `aware_by` says what made the file (None for one that is aware of no provider).
    """

    model: str
    variant: Variant
    file: str
    source_operators: dict[str, int]
    session_options: dict[str, str] = {}
    steps: tuple[str, ...] = ()
    """The passes that the model went through first, as the command line writes them."""
    weights: str = ""
    """The file beside this one that has its weights and those of other sizes of the model; "" where they are in it."""
    weights_bytes: int = 0
    weights_sha256: str = ""
    constant_inputs: tuple[str, ...] = ()
    """Optional inputs of the model that are constants in the file."""

    @property
    def files(self) -> tuple[str, ...]:
        """Its files."""
        return (self.file, self.weights) if self.weights else (self.file,)

    @property
    def total_bytes(self) -> int:
        """Of its files together."""
        return self.size_bytes + self.weights_bytes

    @property
    def source(self) -> str:
        """The name of the model in the artifact's precision: what its reference is called."""
        return in_precision(self.model, self.variant.precision)


def context_variant(chip: str, precision: str = "") -> Variant:
    """The variant of a context: qnn-SM8650, or qnn-SM8650-u8s8qnn."""
    return Variant(level=Level.BASIC, providers=(QNN,), precision=precision, chip=chip)


def aware_lines(artifacts: Iterable[Artifact]) -> list[str]:
    """How provider-aware artifacts were made, one line for each way; none where there are none."""
    counted = Counter(artifact.aware_by.text for artifact in artifacts if artifact.aware_by)
    return [f"provider-aware artifacts {text}: {count}" for text, count in counted.items()]
