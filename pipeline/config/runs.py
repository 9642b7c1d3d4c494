"""The `[[runs]]` tables of a config: ways to run. A list of values means every combination of them that is legal."""

from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta

from device_runner.spec import ExecutionMode
from pipeline.config.table import Count, Table

T = TypeVar("T")
OneOrMore: TypeAlias = T | Annotated[tuple[T, ...], Meta(min_length=1)]
Threads = Annotated[int, Meta(ge=0, le=1024)]

ALL_FLAGS = "all"
"""In place of flags: every set of them."""


class RunConfig(Table, frozen=True, kw_only=True):
    """Ways to run: a provider with its options, threads, session settings, on the variants that match.
    A key with a list of values is tried with each of them, in every combination with the other lists; combinations
    that cannot work are not run, and reported with the reason.
    """

    provider: OneOrMore[str] = "cpu"
    """cpu, nnapi, xnnpack, coreml, qnn, webgpu, or any name that the library knows."""
    variants: tuple[str, ...] = ("*",)
    """Globs over variant names, as in `basic-*`."""
    options: dict[str, OneOrMore[str]] = {}
    """Provider options by name."""
    flags: str | tuple[str | tuple[str, ...], ...] = ()
    """NNAPI flags: a list of USE_FP16, USE_NCHW, CPU_DISABLED, CPU_ONLY; a list of such lists; `all` for every set."""
    threads: OneOrMore[Threads] = 0
    """Intra-op threads; 0 leaves the choice to ONNX Runtime."""
    inter_op_threads: OneOrMore[Threads] = 0
    """Threads for nodes at the same time, in parallel execution mode; 0 leaves the choice to ONNX Runtime."""
    execution_mode: OneOrMore[ExecutionMode] = ExecutionMode.SEQUENTIAL
    """sequential, or parallel: independent nodes at the same time."""
    spinning: OneOrMore[bool] | None = None
    """Whether idle threads wait in a loop, which answers faster and costs power; the library's default is yes."""
    affinities: OneOrMore[str] | None = None
    """Cores of each thread but the first, from 1: `;` between threads, `,` and `-` between cores, as in `3;4`."""
    memory_arena: OneOrMore[bool] = True
    """Whether memory is kept for the next inference."""
    memory_pattern: OneOrMore[bool] = True
    """Whether memory is laid out ahead from the first inference."""
    prepacking: OneOrMore[bool] = True
    """Whether weights are copied into a faster layout on loading, which costs their size in memory once more."""
    dynamic_block_base: OneOrMore[Count] | None = None
    """Work is cut into blocks that become smaller towards the end, as in 4: steadier times when cores are shared."""
    strict: OneOrMore[bool] = False
    """Fail where the provider leaves a node to the CPU (session.disable_cpu_ep_fallback)."""
    session_config: dict[str, OneOrMore[str]] = {}
    """Session config entries, key by key."""

    @property
    def providers(self) -> tuple[str, ...]:
        """Every provider that it names."""
        return self.provider if isinstance(self.provider, tuple) else (self.provider,)
