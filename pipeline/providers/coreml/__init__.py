"""CoreML: Apple's accelerators, with models in one of two formats."""

from pipeline.core import provider as core_provider
from pipeline.core.releases import Release

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
        ),
        core_provider.ProviderRules(
            name="coreml-mlprogram",
            provider="coreml",
            title="CoreML MLProgram",
            options={"ModelFormat": "MLProgram"},
            by_coreml_version=True,
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_coreml",
        platforms=frozenset({"ios", "macos", "linux"}),
        since=Release(1, 7),
        converting_only=frozenset({"linux"}),
    ),
)
