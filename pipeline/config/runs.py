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
    """Session options to run with: an execution provider and its options, threads, and so on, for matching variants.
    A list of values means one run for each; several lists mean every combination of their values. Combinations that
    cannot work are skipped and reported with the reason.
    """

    provider: OneOrMore[str] = "cpu"
    """Execution provider: cpu, nnapi, xnnpack, coreml, qnn, webgpu, or any name that the library has."""
    variants: tuple[str, ...] = ("*",)
    """Glob patterns of variant names, as in `basic-*`."""
    options: dict[str, OneOrMore[str]] = {}
    """Provider options by name."""
    flags: str | tuple[str | tuple[str, ...], ...] = ()
    """NNAPI flags: a list of USE_FP16, USE_NCHW, CPU_DISABLED, CPU_ONLY; a list of such lists; or `all` for every
    combination."""
    threads: OneOrMore[Threads] = 0
    """Intra-op threads; 0: chosen by ONNX Runtime."""
    inter_op_threads: OneOrMore[Threads] = 0
    """Inter-op threads, for parallel execution mode; 0: chosen by ONNX Runtime."""
    execution_mode: OneOrMore[ExecutionMode] = ExecutionMode.SEQUENTIAL
    """sequential, or parallel (independent nodes run concurrently)."""
    spinning: OneOrMore[bool] | None = None
    """Whether idle threads spin: lower latency, more power. ONNX Runtime's default is yes."""
    affinities: OneOrMore[str] | None = None
    """CPU affinities of all threads but the first, cores numbered from 1: `;` separates threads, `,` and `-`
    cores, as in `3;4`."""
    memory_arena: OneOrMore[bool] = True
    """Enable the CPU memory arena (keeps memory for the next inference)."""
    memory_pattern: OneOrMore[bool] = True
    """Enable memory patterns (pre-planned memory)."""
    prepacking: OneOrMore[bool] = True
    """Enable prepacking of weights: faster, but needs memory for a second copy."""
    dynamic_block_base: OneOrMore[Count] | None = None
    """Dynamic block size base (session.dynamic_block_base), for example 4: less variance when cores are shared."""
    strict: OneOrMore[bool] = False
    """Fail if a node falls back to the CPU (session.disable_cpu_ep_fallback)."""
    session_config: dict[str, OneOrMore[str]] = {}
    """Session config entries by key."""

    @property
    def providers(self) -> tuple[str, ...]:
        """Every provider that it names."""
        return self.provider if isinstance(self.provider, tuple) else (self.provider,)
