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
            unsuited={
                "dyn8|w[48]": "the NPU takes some operators of this form only: use qnn",
                "u8u8op": "the NPU takes few operators of this form: use qnn",
                "s16.*": (
                    "the NPU has no depthwise Conv, pool and others of s16 values, and no session is made: use qnn16"
                ),
                "u16[us]16(pc)?": "the NPU multiplies matrices by 8-bit weights only: use qnn16",
            },
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
