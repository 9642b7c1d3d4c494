"""What a conversion is asked and answers, and what a variant means to ONNX Runtime (its converter, 1.21 to 1.31)."""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from pipeline.compat.defects import REPLAY_NEEDS_KEY_SINCE, RUNTIME_STYLE_SINCE, ReadWeight
from pipeline.compat.rules import ArtifactFacts, facts_of
from pipeline.config import REPLAY_KEY
from pipeline.core.abis import ARM64, ARM_ABIS, X86_64
from pipeline.core.errors import Finding, Severity
from pipeline.core.providers import NNAPI, WEBGPU, aware_names
from pipeline.core.releases import Release
from pipeline.core.variant import Artifact, AwareBy, ConvertedFile, Level, Style, Variant, Way
from pipeline.model.guards import BY_PATH
from pipeline.model.ort_format import OrtModel
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Settings
from pipeline.required_ops.value import Need, needs_by_build


class OptimizerPlatform(StrEnum):
    """The stock converter's target platforms: what the optimizer may assume of the processor that runs the file."""

    UNSPECIFIED = "unspecified"
    ARM = "arm"
    AMD64 = "amd64"

    @property
    def abis(self) -> tuple[str, ...]:
        """The ABI that files are made for; () where any may be."""
        return {OptimizerPlatform.ARM: (ARM64,), OptimizerPlatform.AMD64: (X86_64,)}.get(self, ())

    @classmethod
    def of_abi(cls, abi: str) -> "OptimizerPlatform":
        """What files for an ABI may assume: int8 stays int8 on ARM, as its own default is there."""
        return cls.ARM if abi in ARM_ABIS else cls.UNSPECIFIED


class AwareSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Providers with their settings; `safe` leaves to the CPU what a provider's model cannot be built with.

    `by` says whose own session is to save the file, `library` is the path of an Android library. `optional`: where that
    lacks the provider, refuses the model or crashes on it, the file is saved with our claims.
    """

    providers: tuple[Settings, ...] = ()
    safe: bool = False
    by: AwareBy = AwareBy(way=Way.PLUGIN)
    library: str = ""
    optional: bool = False

    @property
    def library_serves(self) -> bool:
        """Whether an Android library can be told all that is asked."""
        (settings, *others) = self.providers
        return not others and not self.safe and settings.provider == NNAPI

    @property
    def way(self) -> Way:
        """What saves the file: the library or the installed onnxruntime, where it serves or none else may."""
        if self.by.way is Way.PLUGIN:
            return Way.PLUGIN
        if self.by.way is Way.LIBRARY:
            return Way.LIBRARY if self.library_serves or not self.optional else Way.PLUGIN
        (settings, *others) = self.providers
        asked = not others and not self.safe and not settings.nnapi_flags and not settings.rules.copies
        serves = asked and has_installed(settings)
        return Way.INSTALLED if serves or not self.optional else Way.PLUGIN


def has_installed(settings: Settings) -> bool:
    """Whether the installed onnxruntime was built with the provider."""
    import onnxruntime

    return settings.rules.run.ort_name in onnxruntime.get_available_providers()


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What makes one optimization differ from another: equal settings give equal files, so they run once.

    `keep_constants` leaves equal constants apart: for a graph that basic optimization has been through, whose fusions
    left equal constants which a second pass would merge. `aware` names the providers whose claims are kept.
    `keep_shared_dq` leaves DequantizeLinear nodes with several readers alone.
    """

    level: Level
    save_records: bool = False
    int8_allowed: bool = False
    nchwc: bool = False
    keep_constants: bool = False
    aware: AwareSpec | None = None
    keep_shared_dq: bool = False
    left_out: tuple[str, ...] = ()
    """Optimizers that are off by name."""
    onnx: bool = False
    """To be written as an ONNX file."""
    reader: str = ""
    """The release that reads the file, where that is older than the one that writes it."""


LAYOUT_SINCE = Release(1, 23)
FORMAT_6_SINCE = Release(1, 16)


def session_settings(variant: Variant, platform: OptimizerPlatform, aware: AwareSpec | None = None) -> SessionSettings:
    """The optimization that a variant asks for.

    Runtime style records the fusions of level extended; those of the levels above are never recorded (the layout
    transformers run when the device loads the file). So at none and basic both styles are one optimization, and
    from extended on runtime style is one. NchwcTransformer makes files for x86 machines only: the stock converter
    leaves it out unless told amd64. Without optimizations there is nothing that claims could be kept from.
    """
    beyond_basic = variant.level not in {Level.NONE, Level.BASIC}
    recorded = beyond_basic and variant.style is Style.RUNTIME
    return SessionSettings(
        level=Level.EXTENDED if recorded else variant.level,
        save_records=recorded,
        int8_allowed=beyond_basic and platform is OptimizerPlatform.ARM,
        nchwc=variant.level in {Level.LAYOUT, Level.ALL} and platform is OptimizerPlatform.AMD64 and not recorded,
        aware=aware if variant.level is not Level.NONE else None,
        onnx=variant.style is Style.ONNX,
    )


def run_time_options(variant: Variant, target: Release, file: ConvertedFile) -> dict[str, str]:
    """Session config entries that the app must set for the artifact to do what was measured.

    From 1.30 saved runtime optimizations are ignored unless the app asks for them (pull request 32077).
    """
    recorded = variant.style is Style.RUNTIME and variant.level not in {Level.NONE, Level.BASIC}
    replays = recorded and not file.unreplayable and target >= REPLAY_NEEDS_KEY_SINCE
    by_path = file.unmappable and variant.style is not Style.ONNX
    return ({REPLAY_KEY: "1"} if replays else {}) | (BY_PATH if by_path else {})


def refusal(variant: Variant, target: Release, installed: Release) -> tuple[str, str] | None:
    """Why this variant cannot be made with the installed onnxruntime for a target's release, and the remedy."""
    at_target, at_host = str(target), str(installed)
    layout = variant.level is Level.LAYOUT
    rules = (
        (variant.style is not Style.ONNX and target < FORMAT_6_SINCE,
         f"onnxruntime {at_target} cannot load ORT format version 6, which {at_host} writes",
         f"convert with onnxruntime {at_target}"),
        (layout and target < LAYOUT_SINCE, f"level layout came with 1.23, the target runs {at_target}",
         "use level extended or all"),
        (variant.style is Style.RUNTIME and target < RUNTIME_STYLE_SINCE,
         f"runtime style came with 1.11, the target runs {at_target}", "use style fixed"),
        (not set(variant.providers) <= set(aware_names()),
         f"models can be made aware of {', '.join(aware_names())} only",
         "use variants of these"),
        (len(variant.providers) > 1 and WEBGPU in variant.providers,
         "the copies between GPU and CPU that such a file has divide what other providers take",
         "make one file for webgpu and one for the others"),
        (bool(variant.providers) and variant.style is Style.ONNX,
         "a session asks its providers itself about an ONNX file", "use style fixed, or onnx without providers"),
        (bool(variant.providers) and variant.style is Style.RUNTIME,
         "runtime style leaves every node to the providers as it is", "use style fixed, or runtime without providers"),
    )  # fmt: skip
    return next(((why, remedy) for applies, why, remedy in rules if applies), None)


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model and the variants wanted of it. `aware` is for all providers that variants name.

    Artifacts go to `output_folder` as `STEM.VARIANT.ort`. `work_folder` is a scratch folder on the same file system;
    the caller removes it whatever happens, so that a killed process leaves nothing. `cache_folder` empty: no cache.
    A provider without settings in `aware` has its defaults.
    `release` is the ONNX Runtime release that will run the artifacts (`1.23`); empty: that of the installed wheel.
    """

    source: SourceModel
    variants: tuple[Variant, ...]
    stem: str
    output_folder: str
    work_folder: str
    cache_folder: str = ""
    release: str = ""
    platform: OptimizerPlatform = OptimizerPlatform.UNSPECIFIED
    fixed_dimensions: dict[str, int] = {}
    optional_inputs: tuple[str, ...] = ()
    """Initializers that stay inputs, so that apps can set them; all others become constants."""
    aware: AwareSpec = AwareSpec()
    preflight: bool = False
    """Whether the result says what each file needs of the ONNX Runtime that will run it."""

    def aware_spec(self, variant: Variant, release: tuple[int, int]) -> AwareSpec | None:
        """Whose claims a variant keeps; None for one that is aware of no provider. ValueError for an unknown one."""
        given = {settings.provider: settings for settings in self.aware.providers}
        providers = tuple(given.get(name) or Settings(provider=name, ort_release=release) for name in variant.providers)
        return msgspec.structs.replace(self.aware, providers=providers) if providers else None


class VariantFailure(Finding, frozen=True, kw_only=True):
    """Why there is no artifact for a variant; `skipped` when a release rules it out and nothing was tried."""

    severity: Severity = Severity.ERROR
    variant: Variant
    skipped: bool = False


FileNeeds: TypeAlias = tuple[ArtifactFacts, tuple[Need, ...], tuple[Need, ...]]
"""What of a file depends on the release, and the operators that a minimal and an extended build need for it."""


def needs_of_file(model: OrtModel, read: ReadWeight) -> FileNeeds:
    """What a parsed file needs; `read` gives its int8 weights."""
    minimal, extended = needs_by_build(model)
    return facts_of(model, "", read), tuple(minimal), tuple(extended)


class ConvertResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request. `dynamic` lists open dimensions, `timings_ns` the time of each stage.

    `content_digest` stands for the model's graph and weights as converted; `reused` counts artifacts from the cache.
    `needs` is by file name, and empty unless it was asked for.
    """

    model: str
    content_digest: str
    artifacts: tuple[Artifact, ...]
    failures: tuple[VariantFailure, ...] = ()
    dynamic: tuple[str, ...] = ()
    reused: int = 0
    needs: dict[str, FileNeeds] = {}
    timings_ns: dict[str, int] = {}


def convert_model(request: ConvertRequest) -> ConvertResult:
    """Convert one model to the variants of the request; what fails for one variant costs no other.

    ModelError (ConfigError for a dimension that the model lacks) when the model itself cannot be used, DiskError
    when the disk is full. Runs in a process of its own where models are not trusted: onnxruntime can crash on them.
    """
    # The engine is for the process that does the work: who only asks for it starts in half the time without.
    from pipeline.convert import engine

    return engine.convert_model(request)
