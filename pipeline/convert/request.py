"""What a conversion is asked and what it answers: plain data, so that it can run in a process of its own."""

import msgspec

from pipeline.convert.rules import OptimizerPlatform
from pipeline.convert.splice.spec import AwareSource, AwareSpec
from pipeline.core.variant import Artifact, Variant
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Provider, Settings


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model and the variants wanted of it. `aware` has the settings of the providers that variants name.

    Artifacts go to `output_folder` as `STEM.VARIANT.ort`. `work_folder` is a scratch folder on the same file system;
    the caller removes it whatever happens, so that a killed process leaves nothing. `cache_folder` empty: no cache.
    A provider without an entry in `aware` has its defaults. `safe` leaves to the CPU what cannot be built on the phone.
    `reference` says whose own session saves the aware files; None: they are spliced.
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
    aware: tuple[Settings, ...] = ()
    safe: bool = False
    reference: AwareSource | None = None

    def wish(self, variant: Variant, release: tuple[int, int]) -> AwareSpec | None:
        """Whose claims a variant keeps; None for one that is aware of no provider. ValueError for an unknown one."""
        given = {settings.provider.value: settings for settings in self.aware}
        found = tuple(
            given.get(name) or Settings(provider=Provider(name), ort_release=release) for name in variant.providers
        )
        return AwareSpec(providers=found, safe=self.safe, reference=self.reference) if found else None


class VariantFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no artifact for a variant; `skipped` when a release rules it out and nothing was tried."""

    variant: Variant
    what: str
    where: str = ""
    why: str = ""
    remedy: str = ""
    skipped: bool = False


class ConvertResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request. `dynamic` lists open dimensions, `timings_ns` the time of each stage.

    `content_digest` stands for the model's graph and weights as converted; `reused` counts artifacts from the cache.
    """

    model: str
    content_digest: str
    artifacts: tuple[Artifact, ...]
    failures: tuple[VariantFailure, ...] = ()
    dynamic: tuple[str, ...] = ()
    reused: int = 0
    timings_ns: dict[str, int] = {}
