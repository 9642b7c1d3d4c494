"""WebGPU: a phone's GPU by Vulkan, node by node."""

from pipeline.core import provider as core_provider
from pipeline.core.releases import Release

PROVIDER = core_provider.Provider(
    name="webgpu",
    position=4,
    formats=(
        core_provider.ProviderRules(
            name="webgpu",
            provider="webgpu",
            title="WebGPU",
            copies=True,
            logs_claims=True,
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_webgpu", platforms=frozenset({"android", "macos", "linux"}), since=Release(1, 21)
    ),
)
