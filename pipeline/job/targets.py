"""What all targets of a config have in common: the oldest release, levels, the settings of providers."""

from pipeline import config as configs
from pipeline.config import Config
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.partition import answer as claim_answer
from pipeline.release import shipped as release_shipped


def oldest_release(config: Config) -> str:
    """The oldest release among the targets: artifacts must run on all of them; "" for the installed one.

    A target that names none has that of its library, where this can be read.
    """
    named = [target.ort_release or release_shipped.library_release(target) for target in config.targets]
    return min((release for release in named if release), key=ort_releases.line_of, default="")


def _abi_of(*targets: configs.Target) -> str:
    """The ABI that claims, graphs and precisions are made for: the first ARM one of the targets, if there is one."""
    return core_abis.deciding_abi(
        [abi for target in targets for abi in core_abis.abis_of_target(target.platform, target.abis)]
    )


COREML_VERSIONS = {15: 5, 16: 6, 17: 7, 18: 8}
"""iOS release to CoreML's version (ep_rules E.1); later ones have the last of these."""


def provider_settings(config: Config) -> tuple[claim_answer.Settings, ...]:
    """The settings of every provider that hold on all targets; ConfigError for a release older than the rules."""
    release = oldest_release(config)
    systems = [t.min_os_version for t in config.targets if t.platform is configs.Platform.IOS and t.min_os_version]
    oldest = min((int(text.partition(".")[0]) for text in systems), default=None)
    return tuple(
        claim_answer.make_settings(
            provider,
            release=release,
            abi=_abi_of(*config.targets),
            android=any(t.platform is configs.Platform.ANDROID for t in config.targets),
            api_level=nnapi_level(config),
            coreml_version=COREML_VERSIONS.get(oldest, 8 if oldest > 18 else 5) if oldest else None,
        )
        for provider in provider_rules.on_any_chip()
    )


def lowest_api_level(config: Config) -> int | None:
    """The lowest API level of the Android targets; None where none names one."""
    levels = [t.min_api_level for t in config.targets if t.platform is configs.Platform.ANDROID and t.min_api_level]
    return min(levels, default=None)


def nnapi_level(config: Config) -> int | None:
    """`lowest_api_level` as ONNX Runtime's NNAPI distinguishes them, 27 to 31."""
    level = lowest_api_level(config)
    return min(max(27, level), 31) if level else None
