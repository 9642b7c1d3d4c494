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
            compiler=core_provider.Compiler(
                title="Qualcomm's compiler for the NPU",
                package="onnxruntime-qnn",
                module="onnxruntime_qnn",
                extra="qnn",
                host="linux on x86_64",
                host_title="Linux on x86-64",
                knows="only it knows what a Snapdragon takes of a model",
                licence="its libraries are under Qualcomm's licence, which installing accepts",
            ),
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_qnn=static_lib",
        platforms=frozenset({"android"}),
        since=Release(1, 21),
        abis=frozenset({"arm64-v8a"}),
    ),
)
