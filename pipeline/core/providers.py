"""The registries of what the pipeline knows of execution providers: whose claims it knows, what it can build.

Both refer to rows of `device_runner.providers` by name. Command line, config, reports and generated docs list what is
in here, in this order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from device_runner import providers as runner_providers
from pipeline.core.releases import Release

NNAPI: Final = "nnapi"
COREML_NN: Final = "coreml-nn"
COREML_MLPROGRAM: Final = "coreml-mlprogram"
XNNPACK: Final = "xnnpack"
QNN: Final = "qnn"
WEBGPU: Final = "webgpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """An execution provider, in one model format, whose claims are known: by rules, or from its own compiler.

    `provider` and `options` are how a run asks for it. `rules_module` is the dotted name of the module that exports
    `claim(graph, settings, only)` and `TABLE`, `load_module` of the one with `forecast(rounds, settings)` and
    `build_refusal(graph, groups, settings)`, which may be the same. Both are imported when they are needed.
    `qdq_units`: it takes quantized operators with their DequantizeLinear and QuantizeLinear nodes as one.
    `on_cpu`: its kernels compute on the CPU, so that borders cost nothing and partitions are not counted.
    `copies`: it takes nodes one by one, and what its borders cost is counted in copies for each inference, by the
    function `copies(graph, settings, claimed)` of `rules_module`; `estimated`, with the same arguments, says that ONNX
    Runtime may insert others.
    `aware`: variants can be aware of it. `by_chip`: its claims depend on the chip, and the compiler of the chips gives
    them: `rules_module` is the module that asks it, with `of_chip`.
    """

    name: str
    provider: str
    title: str
    rules_module: str
    load_module: str
    options: Mapping[str, str] = field(default_factory=dict)
    qdq_units: bool = False
    on_cpu: bool = False
    copies: bool = False
    aware: bool = True
    by_chip: bool = False

    @property
    def run(self) -> runner_providers.ExecutionProvider:
        """The provider of a run."""
        return runner_providers.PROVIDERS[self.provider]

    def borders(self, count: int, *, about: bool = False) -> str:
        """A number of its borders in words: `3 partitions`, `about 1 copy`; "" where borders cost nothing."""
        single, several = ("copy", "copies") if self.copies else ("partition", "partitions")
        return "" if self.on_cpu else f"{'about ' * about}{count} {single if count == 1 else several}"


_RULES = (
    ProviderRules(
        name=NNAPI,
        provider="nnapi",
        title="NNAPI",
        qdq_units=True,
        rules_module="pipeline.partition.nnapi",
        load_module="pipeline.partition.nnapi_load",
    ),
    ProviderRules(
        name=COREML_NN,
        provider="coreml",
        title="CoreML NeuralNetwork",
        options={"ModelFormat": "NeuralNetwork"},
        rules_module="pipeline.partition.coreml",
        load_module="pipeline.partition.coreml",
    ),
    ProviderRules(
        name=COREML_MLPROGRAM,
        provider="coreml",
        title="CoreML MLProgram",
        options={"ModelFormat": "MLProgram"},
        rules_module="pipeline.partition.coreml",
        load_module="pipeline.partition.coreml",
    ),
    ProviderRules(
        name=XNNPACK,
        provider="xnnpack",
        title="XNNPACK",
        on_cpu=True,
        aware=False,
        rules_module="pipeline.partition.xnnpack",
        load_module="pipeline.partition.xnnpack",
    ),
    ProviderRules(
        name=WEBGPU,
        provider="webgpu",
        title="WebGPU",
        copies=True,
        rules_module="pipeline.partition.webgpu",
        load_module="pipeline.partition.webgpu",
    ),
    ProviderRules(
        name=QNN,
        provider="qnn",
        title="QNN",
        qdq_units=True,
        aware=False,
        by_chip=True,
        rules_module="pipeline.partition.qnn.claims",
        load_module="pipeline.partition.qnn.claims",
    ),
)

PROVIDER_RULES: dict[str, ProviderRules] = {row.name: row for row in _RULES}
"""Execution providers whose claims are known, by their names on the command line and in configs.

Of two formats of one provider, the first is the one that a run has without options.
"""


def on_any_chip() -> tuple[str, ...]:
    """Those that can be asked about without naming a chip, as commands do where no provider is named."""
    return tuple(row.name for row in PROVIDER_RULES.values() if not row.by_chip)


def rules_of_run(provider: str, options: Mapping[str, str]) -> ProviderRules | None:
    """Whose claims a run with a provider and its options has; None where no rules are known."""
    rows = [row for row in PROVIDER_RULES.values() if row.provider == provider and not row.by_chip]
    asked = (row for row in rows if row.options.items() <= options.items())
    return next(asked, rows[0] if rows else None)


def in_android_libraries() -> tuple[str, ...]:
    """The providers of which an Android library can be asked what it claims."""
    rows = (row for row in PROVIDER_RULES.values() if not row.by_chip)
    return tuple(row.name for row in rows if not row.run.never_on("android"))


def aware_names() -> tuple[str, ...]:
    """The providers that variants can be aware of."""
    return tuple(row.name for row in PROVIDER_RULES.values() if row.aware)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProvider:
    """What a build of ONNX Runtime needs to contain a provider.

    `platforms` can have it, from the release `since`, for all ABIs or those of `abis`; those of `converting_only` run
    nothing with it and serve full builds on a computer. `elsewhere` is what to do to run it instead.
    """

    flag: str
    platforms: frozenset[str]
    since: Release
    abis: frozenset[str] = frozenset()
    converting_only: frozenset[str] = frozenset()
    elsewhere: str = ""


BUILD_PROVIDERS: dict[str, BuildProvider] = {
    "nnapi": BuildProvider(
        flag="--use_nnapi",
        platforms=frozenset({"android", "linux"}),
        since=Release(1, 7),
        converting_only=frozenset({"linux"}),
        elsewhere="NNAPI needs a phone (`--device adb:SERIAL`), or the phone's library on this computer "
        "(`--device android-host:1.29.0`)",
    ),
    "xnnpack": BuildProvider(
        flag="--use_xnnpack", platforms=frozenset({"android", "ios", "linux", "macos"}), since=Release(1, 13)
    ),
    "coreml": BuildProvider(
        flag="--use_coreml",
        platforms=frozenset({"ios", "macos", "linux"}),
        since=Release(1, 7),
        converting_only=frozenset({"linux"}),
    ),
    "qnn": BuildProvider(
        flag="--use_qnn=static_lib",
        platforms=frozenset({"android"}),
        since=Release(1, 21),
        abis=frozenset({"arm64-v8a"}),
    ),
    "webgpu": BuildProvider(
        flag="--use_webgpu", platforms=frozenset({"android", "macos", "linux"}), since=Release(1, 21)
    ),
}
"""Providers that a build can contain in addition to the CPU. All of them compile kernels or change the layout at load,
which a plain minimal build cannot do (cmake/onnxruntime_providers_nnapi.cmake and its like refuse it)."""
