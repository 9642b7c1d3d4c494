"""What all targets of a config have in common, resolved once: release, ABI, levels, settings of providers."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline import config as configs
from pipeline.config import Config
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.partition import answer as claim_answer
from pipeline.release import shipped as release_shipped

COREML_VERSIONS = {15: 5, 16: 6, 17: 7, 18: 8}
"""iOS release to CoreML's version (ep_rules E.1); later ones have the last of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonTarget:
    """What holds on every target: artifacts must run on all of them.

    `release` is the oldest, "" for the installed one. `abi` is the one that claims, graphs and precisions are made for.
    `android`: one of them is Android's. `api_level` is the lowest of these and `coreml_version` that of the oldest iOS;
    None where none is named.
    """

    release: str
    abi: str
    android: bool
    api_level: int | None
    coreml_version: int | None

    @property
    def nnapi_level(self) -> int | None:
        """The API level as ONNX Runtime's NNAPI distinguishes them, 27 to 31."""
        return min(max(27, self.api_level), 31) if self.api_level else None

    def settings(self) -> tuple[claim_answer.Settings, ...]:
        """Those of every provider; ConfigError for a release older than the rules."""
        return tuple(
            claim_answer.make_settings(
                provider,
                release=self.release,
                abi=self.abi,
                android=self.android,
                api_level=self.nnapi_level,
                coreml_version=self.coreml_version,
            )
            for provider in provider_rules.on_any_chip()
        )


def abi_of(targets: Iterable[configs.Target]) -> str:
    """The ABI that claims, graphs and precisions are made for: the first ARM one of the targets, if there is one."""
    return core_abis.deciding_abi(
        [abi for target in targets for abi in core_abis.abis_of_target(target.platform, target.abis)]
    )


def oldest_release(targets: Iterable[configs.Target]) -> str:
    """The oldest release among the targets; "" for the installed one.

    A target that names none has that of its library, where this can be read.
    """
    named = [target.ort_release or release_shipped.library_release(target) for target in targets]
    return min((release for release in named if release), key=ort_releases.line_of, default="")


def common_target(config: Config) -> CommonTarget:
    """What the targets of a config have in common; libraries that say their release are read."""
    android = [target for target in config.targets if target.platform is configs.Platform.ANDROID]
    ios = [target for target in config.targets if target.platform is configs.Platform.IOS]
    systems = [int(target.min_os_version.partition(".")[0]) for target in ios if target.min_os_version]
    oldest = min(systems, default=None)
    return CommonTarget(
        release=oldest_release(config.targets),
        abi=abi_of(config.targets),
        android=bool(android),
        api_level=min((target.min_api_level for target in android if target.min_api_level), default=None),
        coreml_version=COREML_VERSIONS.get(oldest, 8 if oldest > 18 else 5) if oldest else None,
    )


def release_of(target: configs.Target, installed: str) -> str:
    """The release of ONNX Runtime that a target ships."""
    return target.ort_release or release_shipped.library_release(target) or ".".join(installed.split(".")[:2])
