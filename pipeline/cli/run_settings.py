"""The options by which a command takes ways to run: lists with commas, whose every legal combination is run."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli.options import pairs, words

if TYPE_CHECKING:
    from device_runner.spec import RunOptions

Function = TypeVar("Function", bound=Callable[..., Any])

FLAGS = ("USE_FP16", "USE_NCHW", "CPU_DISABLED", "CPU_ONLY")
SWITCH = {"on": True, "off": False}
MODES = ("sequential", "parallel")
LEVELS = ("none", "basic", "extended", "layout", "all")


def _numbers(least: int) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...]]:
    """A callback that splits `1,2,4` into whole numbers of at least so much."""

    def split(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
        given = words()(ctx, param, value)
        for word in given:
            if not (word.isascii() and word.isdigit() and least <= int(word[:9]) <= 1024):
                raise click.BadParameter(f"{word!r} is no number from {least} to 1024", ctx, param)
        return tuple(int(word) for word in given)

    return split


def _switches(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[bool, ...]:
    return tuple(SWITCH[word] for word in words(tuple(SWITCH))(ctx, param, value))


OPTIONS = (
    click.option(
        "--provider",
        callback=words(),
        default="cpu",
        show_default=True,
        metavar="NAME,…",
        help="cpu, nnapi, xnnpack, coreml, …",
    ),
    click.option(
        "--nnapi-flags",
        callback=words((*FLAGS, "all")),
        metavar="FLAG,…",
        help=f"NNAPI flags: {', '.join(FLAGS)}; all tries every combination.",
    ),
    click.option(
        "--provider-option",
        callback=pairs,
        metavar="KEY=VALUE",
        multiple=True,
        help="Provider option; repeatable.",
    ),
    click.option("--threads", callback=_numbers(0), metavar="N,…", help="Intra-op threads; 0: chosen by ONNX Runtime."),
    click.option(
        "--inter-op-threads", callback=_numbers(0), metavar="N,…", help="Inter-op threads, for parallel execution mode."
    ),
    click.option(
        "--execution-mode", callback=words(MODES), metavar="MODE,…", help=f"Execution mode: {' or '.join(MODES)}."
    ),
    click.option(
        "--spinning", callback=_switches, metavar="on,off", help="Whether idle threads spin: lower latency, more power."
    ),
    click.option(
        "--affinities",
        metavar="CORES",
        help="CPU affinities of all threads but the first, cores from 1, as in 3;4 for three threads.",
    ),
    click.option(
        "--memory-arena",
        callback=_switches,
        metavar="on,off",
        help="CPU memory arena (keeps memory for the next inference).",
    ),
    click.option("--memory-pattern", callback=_switches, metavar="on,off", help="Pre-plan memory (memory pattern)."),
    click.option("--prepacking", callback=_switches, metavar="on,off", help="Prepack weights: faster, more memory."),
    click.option(
        "--dynamic-block-base",
        callback=_numbers(1),
        metavar="N,…",
        help="Dynamic block size base (session.dynamic_block_base).",
    ),
    click.option("--strict", callback=_switches, metavar="on,off", help="Fail if a node falls back to the CPU."),
    click.option(
        "--level",
        "levels",
        callback=words(LEVELS),
        metavar="LEVEL,…",
        help=f"Optimization level for .onnx files: {', '.join(LEVELS)}.  [default: all]",
    ),
    click.option(
        "--session-config",
        callback=pairs,
        metavar="KEY=VALUE",
        multiple=True,
        help="Session config entry; repeatable.",
    ),
)

LISTS = (
    "threads", "inter_op_threads", "execution_mode", "spinning", "memory_arena", "memory_pattern", "prepacking",
    "dynamic_block_base", "strict",
)  # fmt: skip
"""Options that are keys of [[runs]] by the same name; none given leaves the key's default."""


def run_settings(command: Function) -> Function:
    """Add the options of ways to run to a command, which gets their values as keywords for `options_of`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def options_of(answers: Mapping[str, Any]) -> tuple["RunOptions", ...]:
    """Every combination that the options ask for, legal or not; flags are for NNAPI alone. Raises ConfigError."""
    import msgspec

    from device_runner.spec import OptimizationLevel
    from pipeline.campaign.options import run_options
    from pipeline.config import RunConfig
    from pipeline.config.checks import provider_problems
    from pipeline.core.errors import ConfigError

    for problem in provider_problems((), answers["provider"]):
        raise ConfigError(problem.what, where="--provider", why=problem.why, remedy=problem.remedy)
    keys = {key: answers[key] for key in LISTS if answers[key]}
    keys |= {"affinities": answers["affinities"]} if answers["affinities"] else {}
    flags = answers["nnapi_flags"]
    found = []
    for provider in answers["provider"]:
        table = {
            "provider": provider,
            "flags": () if provider != "nnapi" else "all" if "all" in flags else flags,
            "options": answers["provider_option"] if provider not in ("cpu", "nnapi") else {},
            "session_config": answers["session_config"],
            **keys,
        }
        found += run_options(msgspec.convert(table, RunConfig))
    levels = [OptimizationLevel(level) for level in answers["levels"]] or [OptimizationLevel.ALL]
    return tuple(msgspec.structs.replace(one, optimization_level=level) for one in found for level in levels)
