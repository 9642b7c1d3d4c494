"""What a conversion is asked and answers, and what a variant means to ONNX Runtime (its converter, 1.21 to 1.31)."""

from enum import StrEnum

import msgspec

from pipeline import config as configs
from pipeline.compat import defects as compat_defects
from pipeline.compat import rules as compat_rules
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import variant as core_variant
from pipeline.core.errors import Finding, Severity
from pipeline.core.releases import Release
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.model import guards, ort_format
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.required_ops import value as required_ops_value


class OptimizerPlatform(StrEnum):
    """The stock converter's target platforms: what the optimizer may assume of the processor that runs the file."""

    UNSPECIFIED = "unspecified"
    ARM = "arm"
    AMD64 = "amd64"

    @property
    def abis(self) -> tuple[str, ...]:
        """The ABI that files are made for; () where any may be."""
        return {OptimizerPlatform.ARM: (core_abis.ARM64,), OptimizerPlatform.AMD64: (core_abis.X86_64,)}.get(self, ())

    @classmethod
    def of_abi(cls, abi: str) -> "OptimizerPlatform":
        """What files for an ABI may assume: int8 stays int8 on ARM, as its own default is there."""
        return cls.ARM if abi in core_abis.ARM_ABIS else cls.UNSPECIFIED


class AwareSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Providers with their settings; `safe` leaves to the CPU what a provider's model cannot be built with.

    `by` says whose own session is to save the file, `library` is the path of an Android library. `optional`: where that
    lacks the provider, refuses the model or crashes on it, the file is saved with our claims.
    """

    providers: tuple[claim_answer.Settings, ...] = ()
    safe: bool = False
    by: core_variant.AwareBy = core_variant.AwareBy(way=core_variant.Way.PLUGIN)
    library: str = ""
    optional: bool = False

    @property
    def library_serves(self) -> bool:
        """Whether an Android library can be told all that is asked."""
        (settings, *others) = self.providers
        return not others and not self.safe and settings.rules.run.nnapi

    @property
    def way(self) -> core_variant.Way:
        """What saves the file: the library or the installed onnxruntime, where it serves or none else may."""
        if self.by.way is core_variant.Way.PLUGIN:
            return core_variant.Way.PLUGIN
        if self.by.way is core_variant.Way.LIBRARY:
            return core_variant.Way.LIBRARY if self.library_serves or not self.optional else core_variant.Way.PLUGIN
        (settings, *others) = self.providers
        asked = not others and not self.safe and not settings.nnapi_flags and not settings.rules.copies
        serves = asked and has_installed(settings)
        return core_variant.Way.INSTALLED if serves or not self.optional else core_variant.Way.PLUGIN


def has_installed(settings: claim_answer.Settings) -> bool:
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


def run_time_options(variant: Variant, target: Release, file: core_variant.ConvertedFile) -> dict[str, str]:
    """Session config entries that the app must set for the artifact to do what was measured.

    From 1.30 saved runtime optimizations are ignored unless the app asks for them (pull request 32077).
    """
    recorded = variant.style is Style.RUNTIME and variant.level not in {Level.NONE, Level.BASIC}
    replays = recorded and not file.unreplayable and target >= compat_defects.REPLAY_NEEDS_KEY_SINCE
    by_path = file.unmappable and variant.style is not Style.ONNX
    return ({configs.REPLAY_KEY: "1"} if replays else {}) | (guards.BY_PATH if by_path else {})


def refusal(variant: Variant, target: Release, installed: Release) -> tuple[str, str] | None:
    """Why this variant cannot be made with the installed onnxruntime for a target's release, and the remedy."""
    at_target, at_host = str(target), str(installed)
    layout = variant.level is Level.LAYOUT
    rules = (
        (
            variant.style is not Style.ONNX and target < FORMAT_6_SINCE,
            f"onnxruntime {at_target} cannot load ORT format version 6, which {at_host} writes",
            f"convert with onnxruntime {at_target}",
        ),
        (
            layout and target < LAYOUT_SINCE,
            f"level layout came with 1.23, the target runs {at_target}",
            "use level extended or all",
        ),
        (
            variant.style is Style.RUNTIME and target < compat_defects.RUNTIME_STYLE_SINCE,
            f"runtime style came with 1.11, the target runs {at_target}",
            "use style fixed",
        ),
        (
            not set(variant.providers) <= set(provider_rules.aware_names()),
            f"models can be made aware of {', '.join(provider_rules.aware_names())} only",
            "use variants of these",
        ),
        (
            len(variant.providers) > 1 and bool(provider_rules.with_copies(variant.providers)),
            "the copies between GPU and CPU that such a file has divide what other providers take",
            "make one file for webgpu and one for the others",
        ),
        (
            bool(variant.providers) and variant.style is Style.ONNX,
            "a session asks its providers itself about an ONNX file",
            "use style fixed, or onnx without providers",
        ),
        (
            bool(variant.providers) and variant.style is Style.RUNTIME,
            "runtime style leaves every node to the providers as it is",
            "use style fixed, or runtime without providers",
        ),
    )
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
        providers = tuple(
            given.get(name) or claim_answer.Settings(provider=name, ort_release=release) for name in variant.providers
        )
        return msgspec.structs.replace(self.aware, providers=providers) if providers else None


class VariantFailure(Finding, frozen=True, kw_only=True):
    """Why there is no artifact for a variant; `skipped` when a release rules it out and nothing was tried."""

    severity: Severity = Severity.ERROR
    variant: Variant
    skipped: bool = False


class FileNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What of a file depends on the release, and the operators that a minimal and an extended build need for it."""

    facts: compat_rules.ArtifactFacts
    minimal: tuple[required_ops_value.Need, ...]
    extended: tuple[required_ops_value.Need, ...]


def needs_of_file(model: ort_format.OrtModel, read: compat_defects.ReadWeight) -> FileNeeds:
    """What a parsed file needs; `read` gives its int8 weights."""
    minimal, extended = required_ops_value.needs_by_build(model)
    return FileNeeds(facts=compat_rules.facts_of(model, "", read), minimal=tuple(minimal), extended=tuple(extended))


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

    return engine.convert_here(request)
