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
