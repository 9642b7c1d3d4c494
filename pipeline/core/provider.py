"""What a folder of pipeline/providers says of its execution provider, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from device_runner import providers as runner_providers
from pipeline.core.releases import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A package with the compiler of chips, which knows what a provider takes.

    `host` is the only system on which it offers an NPU, as `sys.platform` and `platform.machine()` name it, with the
    name that people know; `extra` is that of ours which installs it.
    """

    title: str
    package: str
    module: str
    extra: str
    host: str
    host_title: str
    knows: str
    licence: str


QUANTIZED = "[us]8[us]8(pc|op|qnn|nnapi|xnnpack)?|u16s8(pc|qnn)|mix.*"
"""Precisions with quantized values that are known before the model runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """An execution provider, in one model format, whose claims are known: by rules, or from its own compiler.

    `provider` and `options` are how a run asks for it.
    `qdq_units`: it takes quantized operators with their DequantizeLinear and QuantizeLinear nodes as one.
    `on_cpu`: its kernels compute on the CPU, so that borders cost nothing and partitions are not counted.
    `copies`: it takes nodes one by one, and what its borders cost is counted in copies for each inference.
    `aware`: variants can be aware of it. `by_api_level`, `by_coreml_version`: its claims depend on the phone's API
    level, or on the version of Core ML there. `compiler`: they depend on the chip, and the compiler of the chips
    gives them. `logs_claims`: libraries from before 1.24 log what it claims.
    `unsuited`: by a regular expression of precisions' names, why these are not for it; also of forms that no precision
    makes, as models come in. `candidates`: the precisions that `auto` tries for it, its recipe first.
    """

    name: str
    provider: str
    title: str
    options: Mapping[str, str] = field(default_factory=dict)
    qdq_units: bool = False
    on_cpu: bool = False
    copies: bool = False
    aware: bool = True
    by_api_level: bool = False
    by_coreml_version: bool = False
    compiler: Compiler | None = None
    logs_claims: bool = False
    unsuited: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()

    @property
    def by_chip(self) -> bool:
        """Whether its claims depend on the chip."""
        return self.compiler is not None

    @property
    def run(self) -> runner_providers.ExecutionProvider:
        """The provider of a run."""
        return runner_providers.PROVIDERS[self.provider]

    def borders(self, count: int, *, about: bool = False) -> str:
        """A number of its borders in words: `3 partitions`, `about 1 copy`; "" where borders cost nothing."""
        single, several = ("copy", "copies") if self.copies else ("partition", "partitions")
        return "" if self.on_cpu else f"{'about ' * about}{count} {single if count == 1 else several}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProvider:
    """What a build of ONNX Runtime needs to contain a provider.

    `platforms` can have it, from the release `since`, for all ABIs or those of `abis`; those of `converting_only` run
    nothing with it and serve full builds on a computer. `contrib_ops`: its kernels are in com.microsoft, so that a
    build cannot leave that out. `elsewhere` is what to do to run it instead.
    """

    flag: str
    platforms: frozenset[str]
    since: Release
    abis: frozenset[str] = frozenset()
    converting_only: frozenset[str] = frozenset()
    contrib_ops: bool = False
    elsewhere: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """An execution provider: `PROVIDER` of its folder, which has its `name`.

    `run` is its row for runs, where `device_runner` has none by its `name`. `formats` are those that it takes models
    in, with the claims of each; the first is the one that a run has without options. `build` is there where custom
    builds can contain it. `position` is its place in lists, those of one place by name.
    """

    name: str
    run: runner_providers.ExecutionProvider | None = None
    formats: tuple[ProviderRules, ...] = ()
    build: BuildProvider | None = None
    position: int = 100
