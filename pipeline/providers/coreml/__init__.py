"""CoreML: Apple's accelerators, with models in one of two formats."""

from pipeline.core import provider as core_provider
from pipeline.core.releases import Release

QUANTIZED = {
    "dyn8|w[48]": "only the CPU has kernels of this form",
    core_provider.QUANTIZED: "CoreML claims no quantized operator: use fp16 in an MLProgram",
}

PROVIDER = core_provider.Provider(
    name="coreml",
    position=2,
    formats=(
        core_provider.ProviderRules(
            name="coreml-nn",
            provider="coreml",
            title="CoreML NeuralNetwork",
            options={"ModelFormat": "NeuralNetwork"},
            by_coreml_version=True,
            unsuited={
                "fp16|fp16gpu": "a NeuralNetwork has no float16 value: use the MLProgram format",
                **QUANTIZED,
            },
            candidates=("fp16",),
        ),
        core_provider.ProviderRules(
            name="coreml-mlprogram",
            provider="coreml",
            title="CoreML MLProgram",
            options={"ModelFormat": "MLProgram"},
            by_coreml_version=True,
            unsuited=QUANTIZED,
            candidates=("fp16",),
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_coreml",
        platforms=frozenset({"ios", "macos", "linux"}),
        since=Release(1, 7),
        converting_only=frozenset({"linux"}),
    ),
)
