"""`ort-mobile op-config`: makes, merges, proves, explains and compares operator configs."""

import contextlib
import difflib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from device_runner import providers as runner_providers
from device_runner import safe_text, untrusted_files
from pipeline.cli.command import Group
from pipeline.cli.outputs import Outputs, json_option
from pipeline.core import groups as counting
from pipeline.core.errors import CheckFailed, ConfigError, ModelError

if TYPE_CHECKING:
    from pipeline.required_ops import proof as required_ops_proof
    from pipeline.required_ops import value as required_ops_value

MOST_ARTIFACTS = 3
"""So many artifacts are listed with each operator that is missing."""

LAYOUTS_KNOWN = sorted(
    provider.name
    for provider in runner_providers.PROVIDERS.values()
    if provider.nhwc is not None and not provider.fallback
)
"""Providers of which it is known whether they have layouts changed at load."""

_path = click.Path(path_type=Path)
_artifacts = click.argument("artifacts", nargs=-1, required=True, type=_path)
_some_artifacts = click.argument("artifacts", nargs=-1, type=_path)
_output = click.option("--output", "-o", type=_path, help="File to write.  [default: stdout]")
_provider = click.option(
    "--provider",
    "providers",
    multiple=True,
    type=click.Choice(LAYOUTS_KNOWN),
    help="Execution provider that the app registers: adds the operators that it needs while loading; repeatable.",
)
_extended = click.option(
    "--extended",
    is_flag=True,
    help="The build is `minimal_build extended` or full, which optimizes while loading. Implied by --provider and by"
    " runtime style artifacts.",
)


@click.group(
    cls=Group,
    examples=(
        "ort-mobile op-config create out/ --output required_operators.config",
        "ort-mobile op-config check required_operators.config out/",
    ),
)
def op_config() -> None:
    """Create, merge, check and explain the operator configs of reduced builds.

    ARTIFACT is an ORT format file, a folder or a zip archive of them. A config is ONNX Runtime's own text format:
    pass it to its build scripts as --include_ops_by_config, with --enable_reduced_operator_type_support for the types.
    """


@op_config.command(examples=("ort-mobile op-config create out/ --provider nnapi --output required_operators.config",))
@_artifacts
@click.option(
    "--types/--no-types", default=True, help="Restrict operators to the types that are used.  [default: --types]"
)
@click.option("--globally-allowed-types", metavar="T,...", help="Restrict all operators to these C++ types.")
@_provider
@_extended
@_output
@json_option
def create(
    artifacts: Sequence[Path],
    types: bool,
    globally_allowed_types: str | None,
    providers: Sequence[str],
    extended: bool,
    output: Path | None,
    outputs: Outputs,
) -> None:
    """Create the smallest config whose build runs every ARTIFACT, and check it before it is written."""
    from pipeline import required_ops

    needs = _needs(artifacts, providers, extended=extended)
    required = required_ops.union_of(required_ops.from_needs(needed, types=types) for needed in needs.values())
    if globally_allowed_types is not None:
        allowed = required_ops.parse(f"!globally_allowed_types;{globally_allowed_types}", "--globally-allowed-types")
        required = required.with_global_types(allowed.global_types or ())
    missing = {name: required_ops.covers(required, needed) for name, needed in needs.items()}
    if any(missing.values()):
        _print_missing(missing, err=not outputs.text)
        raise CheckFailed(
            "the config would not run these models",
            why="they use types that are not allowed",
            remedy="allow these types too, or leave the option out",
        )
    _write(required, output, outputs)
    from pipeline.required_ops import value as required_ops_value

    foreign = sorted({domain for domain, _ in required.operators} - required_ops_value.KNOWN_DOMAINS)
    if foreign:
        click.echo(
            f"note: kernels of {', '.join(foreign)} come from a custom operator library, no build adds them", err=True
        )


@op_config.command(examples=("ort-mobile op-config merge a.config b.config --output both.config",))
@click.argument("configs", nargs=-1, required=True, type=_path)
@_output
@json_option
def merge(configs: Sequence[Path], output: Path | None, outputs: Outputs) -> None:
    """Merge CONFIGS without losing a type. (In a file with two lines for an operator, ONNX Runtime uses the last.)"""
    from pipeline import required_ops

    _write(required_ops.union_of(required_ops.read_config(path, merged=True) for path in configs), output, outputs)


@op_config.command(
    examples=(
        "ort-mobile op-config check required_operators.config out/",
        "ort-mobile op-config check required_operators.config out/ --from-log logcat.txt --json -",
    ),
)
@click.argument("config", type=_path)
@_some_artifacts
@_provider
@_extended
@click.option(
    "--from-log",
    "log",
    type=_path,
    help="Read a device's log of ONNX Runtime, and name the config line that its errors ask for.",
)
@json_option
def check(
    config: Path,
    artifacts: Sequence[Path],
    providers: Sequence[str],
    extended: bool,
    log: Path | None,
    outputs: Outputs,
) -> None:
    """Check that a build of CONFIG runs every ARTIFACT: all nodes, opsets, types.

    Exits with 4 and lists what is missing.
    """
    from pipeline import required_ops
    from pipeline.required_ops import proof as required_ops_proof

    if not artifacts and log is None:
        raise ConfigError("nothing to check", remedy="name artifacts, or a log with --from-log")
    required = required_ops.read_config(config)
    needs = _needs(artifacts, providers, extended=extended) if artifacts else {}
    missing = {name: required_ops.covers(required, needed) for name, needed in needs.items()}
    findings: tuple[required_ops_proof.LogFinding, ...] = ()
    if log:
        try:
            text = untrusted_files.read_regular(log, required_ops_proof.LOG_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise ConfigError(
                "cannot read the log", where=str(log), why=error.strerror or str(error), remedy="check the path"
            ) from error
        findings = required_ops_proof.read_log(text, required, list(needs.values()))
    outputs.write_json({"config": str(config), "missing": missing, "log": findings})
    err = not outputs.text
    _print_missing(missing, err=err)
    for finding in findings:
        _show(finding.what, err=err)
        _show(f"    cause: {finding.why}", err=err)
        _show(f"    remedy: {finding.remedy}", err=err)
        if finding.line:
            click.echo(f"    {finding.line}", err=err)
    kernels = {(kernel.domain, kernel.op, kernel.since_version) for items in missing.values() for kernel in items}
    if count := len(kernels | {finding.line for finding in findings if finding.line}):
        raise CheckFailed(
            f"the config lacks {counting.counted(count, 'operator')}",
            where=str(config),
            remedy="save the lines in a file and join it with `ort-mobile op-config merge`, or create the config anew",
        )
    if findings:
        raise CheckFailed(
            "the log has errors that this config is not the cause of",
            where=str(log),
            remedy="see the advice with each of them",
        )
    if outputs.text:
        operators = {(need.domain, need.op) for rows in needs.values() for need in rows}
        sizes = f"{counting.counted(len(operators), 'operator')} of {counting.counted(len(needs), 'artifact')}"
        proven = f"{config}: covers all {sizes}" if needs else ""
        silent = f"{log}: nothing about operators" if log else ""
        click.echo("\n".join(line for line in (proven, silent) if line))


@op_config.command(examples=("ort-mobile op-config explain out/ --operator Conv",))
@_artifacts
@click.option("--operator", help="Show only this operator, as in Conv or ai.onnx:Conv.")
@click.option("--config", type=_path, help="Also list what this config has and no ARTIFACT needs.")
@_provider
@_extended
@json_option
def explain(
    artifacts: Sequence[Path],
    operator: str | None,
    config: Path | None,
    providers: Sequence[str],
    extended: bool,
    outputs: Outputs,
) -> None:
    """Show which ARTIFACT needs which operator with which types, and for which nodes."""
    from pipeline import required_ops
    from pipeline.required_ops import proof as required_ops_proof
    from pipeline.required_ops import text as required_ops_text

    needs = _needs(artifacts, providers, extended=extended)
    shown = list(required_ops_proof.uses(needs))
    if operator is not None:  # named as Conv or ai.onnx:Conv in any case
        names = {name.lower(): use.op for use in shown for name in (use.op, f"{use.domain}:{use.op}")}
        if operator.lower() not in names:
            close = difflib.get_close_matches(operator.lower(), names, n=1)
            operators = ", ".join(sorted({use.op for use in shown}))
            raise ConfigError(
                f"no artifact uses an operator {operator!r}",
                where="--operator",
                remedy=f"did you mean {names[close[0]]}?" if close else f"they use: {operators}",
            )
        shown = [use for use in shown if operator.lower() in (use.op.lower(), f"{use.domain}:{use.op}".lower())]
    unused = list(
        required_ops_text.operator_lines(
            required_ops_proof.superfluous(required_ops.read_config(config), needs) if config else required_ops.EMPTY
        )
    )
    lines = []
    for use in shown:
        lines.append(f"{use.domain}:{use.op} since {use.since_version}{_listed(use.types, ': ')}")
        lines += [f"    {name}: {_nodes(nodes[0], len(nodes))}" for name, nodes in use.artifacts.items()]
    lines += [f"no model needs {line}" for line in unused]
    outputs.show_lines({"uses": shown, "superfluous": unused}, lines)


@op_config.command(examples=("ort-mobile op-config diff old.config new.config out/",))
@click.argument("old", type=_path)
@click.argument("new", type=_path)
@_some_artifacts
@_provider
@_extended
@json_option
def diff(
    old: Path, new: Path, artifacts: Sequence[Path], providers: Sequence[str], extended: bool, outputs: Outputs
) -> None:
    """Show what NEW adds to OLD and removes from it; with ARTIFACTS, also which of them need the additions."""
    from pipeline import required_ops
    from pipeline.required_ops import proof as required_ops_proof

    needs = _needs(artifacts, providers, extended=extended) if artifacts else {}
    differences = required_ops_proof.changes(required_ops.read_config(old), required_ops.read_config(new), needs)
    lines = list(map(required_ops_proof.sentence, differences)) or ["the same operators, opsets and types"]
    outputs.show_lines({"old": str(old), "new": str(new), "changes": differences}, lines)
    if differences and outputs.text:
        click.echo(required_ops_proof.counted(differences), err=True)


def _needs(paths: Sequence[Path], providers: Sequence[str], *, extended: bool) -> "dict[str, required_ops_value.Needs]":
    """The needs of all artifacts. A config from some of them would fail the others, so one bad file fails all."""
    from pipeline.cli.main import show_error
    from pipeline.model import ort_format
    from pipeline.required_ops import text as required_ops_text

    for path in paths:
        if path.suffix.lower() == ".onnx" and path.is_file():  # an artifact of style onnx is for full builds
            with path.open("rb") as file:
                ort_format.check_identifier(file.read(8), str(path))
    needs, errors = required_ops_text.needs_of_artifacts(paths, providers=providers, extended=extended)
    _show_onnx(path for path in paths if path.is_dir() or path.suffix.lower() == ".zip")
    for error in errors:
        show_error(error)
    if errors:
        raise ModelError(
            f"{len(errors)} of {len(errors) + len(needs)} artifacts cannot be read",
            remedy="fix them, or leave them out",
        )
    return needs


def _show_onnx(containers: Iterable[Path]) -> None:
    """What of folders and archives no config of `op-config` covers, on stderr."""
    from pipeline.model import sources as model_sources

    onnx = []
    for path in containers:
        with contextlib.suppress(ConfigError):  # it has none
            onnx += model_sources.find_models([path], (".onnx",))
    if onnx:
        names = ", ".join(Path(source.name).name for source in onnx[:MOST_ARTIFACTS])
        more = ", …" if onnx[MOST_ARTIFACTS:] else ""
        text = (
            f"note: not covered: {counting.counted(len(onnx), 'ONNX file')} ({names}{more}), which full builds "
            "optimize at load"
        )
        _show(
            f"{text}: `ort-mobile run` and `ort-mobile convert --format onnx` write the config of such files", err=True
        )


def _write(required: "required_ops_value.RequiredOps", output: Path | None, outputs: Outputs) -> None:
    """The config to a file, or to stdout where JSON does not go there."""
    from pipeline import required_ops
    from pipeline.core import files as storage
    from pipeline.required_ops import text as required_ops_text

    if outputs.json_to:
        lines = tuple(required_ops_text.operator_lines(required))
        outputs.write_json(
            {"config": str(output) if output else None, "lines": lines, "text": required_ops.render(required)}
        )
    if output:
        storage.write_text(output, required_ops.render(required))
        if outputs.text:
            click.echo(f"{output}: written, {counting.counted(len(required.operator_keys()), 'operator')}")
    elif outputs.json_to != "-":
        click.echo(required_ops.render(required), nl=False)


def _print_missing(missing: "dict[str, tuple[required_ops_proof.Missing, ...]]", *, err: bool) -> None:
    """Each kernel that is missing with the artifacts that need it, then the lines that bring them all."""
    from pipeline.required_ops import proof as required_ops_proof

    show = partial(_show, err=err)
    kernels = required_ops_proof.lacks(missing)
    for lack, nodes in kernels:
        show(f"{lack.domain}:{lack.op} since {lack.since_version}{_listed(lack.types, ', ')}: {lack.why}")
        for name, (node, count) in list(nodes.items())[:MOST_ARTIFACTS]:
            show(f"    {name}: {_nodes(node, count)}")
        if len(nodes) > MOST_ARTIFACTS:
            show(f"    and {counting.counted(len(nodes) - MOST_ARTIFACTS, 'more artifact')}; --json has them all")
    if kernels:
        show("add:")
    for line in required_ops_proof.lines_to_add(kernel for items in missing.values() for kernel in items):
        show(f"    {line}")


def _show(line: str, *, err: bool = False) -> None:
    """Print a line that holds names from models and logs, which may hold what steers a terminal."""
    click.echo(safe_text.visible(line), err=err)


def _listed(types: Sequence[str], before: str) -> str:
    return before + ", ".join(types) if types else ""


def _nodes(first: str, count: int) -> str:
    return f"node {first}" + (f" and {count - 1} more" if count > 1 else "")
