"""QNN: the NPU of Snapdragon chips, of which Qualcomm's compiler is asked what it takes."""

from pipeline.core import provider as core_provider
from pipeline.core.releases import Release

PROVIDER = core_provider.Provider(
    name="qnn",
    position=5,
    formats=(
        core_provider.ProviderRules(
            name="qnn",
            provider="qnn",
            title="QNN",
            qdq_units=True,
            aware=False,
            by_chip=True,
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_qnn=static_lib",
        platforms=frozenset({"android"}),
        since=Release(1, 21),
        abis=frozenset({"arm64-v8a"}),
    ),
)
