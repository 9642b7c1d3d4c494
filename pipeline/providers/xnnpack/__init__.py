"""XNNPACK: kernels for the CPU, float above all."""

from pipeline.core import provider as core_provider
from pipeline.core.releases import Release

PROVIDER = core_provider.Provider(
    name="xnnpack",
    position=3,
    formats=(
        core_provider.ProviderRules(
            name="xnnpack",
            provider="xnnpack",
            title="XNNPACK",
            on_cpu=True,
            aware=False,
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_xnnpack",
        platforms=frozenset({"android", "ios", "linux", "macos"}),
        since=Release(1, 13),
        contrib_ops=True,
    ),
)
