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
            # GPUs have kernels for weights of few bits (MatMulNBits), not for quantized values
            unsuited=dict.fromkeys(
                ("dyn8", core_provider.QUANTIZED),
                "WebGPU has no kernel for quantized values, which go to the CPU and back: use gpu (fp16), gpu8 or gpu4",
            ),
            candidates=("fp16gpu",),
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_webgpu", platforms=frozenset({"android", "macos", "linux"}), since=Release(1, 21)
    ),
)
