"""NNAPI: Android's interface to accelerators."""

from pipeline.core import provider as core_provider
from pipeline.core.releases import Release

PROVIDER = core_provider.Provider(
    name="nnapi",
    position=1,
    formats=(
        core_provider.ProviderRules(
            name="nnapi",
            provider="nnapi",
            title="NNAPI",
            qdq_units=True,
            by_api_level=True,
            logs_claims=True,
            unsuited={
                "fp16|fp16gpu": "NNAPI claims no float16 value: keep the model float and set USE_FP16",
                "dyn8|w[48]": "only the CPU has kernels of this form",
                "u8s8|u8s8pc|mixu8s8pc": (
                    "a session on the phone fails where Gemm or MatMul has i8 weights: use u8s8nnapi"
                ),
                "s8s8|s8s8pc|u16s8pc|s8s8xnnpack|mixxnnpack|mixs8s8pc": "NNAPI supports u8 values only: use u8s8nnapi",
                "u8u8pc": "NNAPI supports a scale for each channel of i8 weights only: use u8s8nnapi or u8u8",
                "u8s8qnn|u16s8qnn": "NNAPI wants float operators between quantized ones: use u8s8nnapi",
            },
            candidates=("u8s8nnapi", "u8u8nnapi", "u8u8op"),
        ),
    ),
    build=core_provider.BuildProvider(
        flag="--use_nnapi",
        platforms=frozenset({"android", "linux"}),
        since=Release(1, 7),
        converting_only=frozenset({"linux"}),
        elsewhere="NNAPI needs a phone (`--device adb:SERIAL`), or the phone's library on this computer "
        "(`--device android-host:1.29.0`)",
    ),
)
