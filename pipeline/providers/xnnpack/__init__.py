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
            unsuited={
                "dyn8|w[48]": "only the CPU has kernels of this form",
                "u8s8|u8u8pc|u8s8pc|u16s8pc|u8s8nnapi|mixnnapi|mixu8s8pc": (
                    "XNNPACK supports s8 with s8 and u8 with u8 per tensor only: use s8s8xnnpack"
                ),
                "u8s8qnn|u16s8qnn": "XNNPACK has no such pairs of types: use s8s8xnnpack",
                "u8u8op": "XNNPACK claims QDQ only: use s8s8xnnpack",
            },
            candidates=("s8s8xnnpack", "u8u8"),
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_xnnpack",
        platforms=frozenset({"android", "ios", "linux", "macos"}),
        since=Release(1, 13),
        contrib_ops=True,
    ),
)
