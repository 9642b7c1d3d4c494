"""`ort-mobile build`: plans and runs custom builds of ONNX Runtime, and says what is missing for them."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Group, together
from pipeline.cli.outputs import Outputs, json_option, show_findings
from pipeline.cli.values import one_value

if TYPE_CHECKING:
    from pipeline.core.errors import Finding
    from pipeline.ort_build import doctor as build_doctor
    from pipeline.ort_build import plan as build_plan
    from pipeline.ort_build import request as build_request
    from pipeline.ort_build import run as build_run

FILE = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOrder:
    """What is to be built: of a config, or one target with default settings."""

    config: Path | None
    target: str | None
    operators: Path | None
    source: Path | None
    system_dependencies: bool
    onnx_source: Path | None
    jobs: int | None

    def requests(self) -> tuple["build_request.Request", ...]:
        """One for each target; ConfigError where nothing is named, or the source is of another release."""
        from pipeline.core.errors import ConfigError
        from pipeline.ort_build import request as build_request
        from pipeline.ort_build import tree as source_tree

        if self.config is None and self.target is None:
            raise ConfigError(
                "what is to be built?", remedy="give a CONFIG, or a --target such as linux-x86_64 or android-arm64-v8a"
            )
        requests = build_request.requests_for(
            self.config,
            self.target,
            self.operators,
            source_tree.tree_release(self.source) if self.source else None,
            system_dependencies=self.system_dependencies,
            onnx_source=self.onnx_source,
            jobs=self.jobs,
        )
        if self.source:
            for request in requests:
                source_tree.check_release(self.source, request.version)
        return requests


_choices = together(
    click.argument("config", type=FILE, required=False),
    click.option("--target", metavar="NAME", help="A target of CONFIG, or PLATFORM-ABI, as in android-arm64-v8a."),
    click.option("--op-config", "operators", type=FILE, help="Operator config.  [default: all operators]"),
    click.option("--source", type=FILE, help="Source tree of ONNX Runtime."),
    click.option("--system-dependencies", is_flag=True, help="Use system packages, download nothing."),
    click.option("--onnx-source", type=FILE, help="Source of ONNX, for --system-dependencies."),
    click.option(
        "--jobs", type=click.IntRange(1, 2**31 - 1), help="Parallel compiler processes.  [default: one per processor]"
    ),
    one_value("order", BuildOrder, *(field.name for field in fields(BuildOrder))),
)
"""The options that say what is to be built, the same for every command of the group, which gets `order`."""


@click.group(cls=Group)
def build() -> None:
    """Plan and run custom builds of ONNX Runtime.

    CONFIG is a config of `ort-mobile run`, or a file of build_configs/builds; for a library with default settings,
    --target alone is enough.
    """


@build.command(examples=("ort-mobile build plan my.toml --target android-arm64",))
@_choices
@click.option("--output", type=FILE, help="Folder to write plan and settings files to.")
@json_option
def plan(output: Path | None, order: BuildOrder, outputs: Outputs) -> None:
    """Show the exact commands and settings files of a build; exit code 4 if it cannot work."""
    import shlex

    import msgspec

    from pipeline.core import errors as core_errors
    from pipeline.core import files as storage
    from pipeline.ort_build import lint

    requests = order.requests()
    plans = [_plan(request, order.source, output) for request in requests]
    findings = [finding for request in requests for finding in lint.lint(request)]
    for planned in plans if output else ():
        for file in planned.files:
            storage.write_text(Path(file.path), file.content)
        plan_json = msgspec.json.format(msgspec.json.encode(planned)) + b"\n"
        storage.write_bytes(Path(str(output)) / planned.target / "plan.json", plan_json)
    outputs.write_json({"plans": plans, "findings": findings})
    for planned in plans if outputs.text else ():
        click.echo(click.style(f"{planned.target}: ONNX Runtime {planned.version}, {planned.kind.value}", bold=True))
        for file in planned.files:
            lines = file.content.count("\n")
            written = "" if Path(file.path).exists() else ", written by --output and by `ort-mobile build run`"
            click.echo(f"  file  {file.path} ({lines} lines{written})")
            if file.path.endswith(".json"):
                click.echo("\n".join(f"        {line}" for line in file.content.splitlines()))
        for step in planned.steps:
            absent = "  (not there yet: give the source tree of ONNX Runtime by --source)"
            click.echo(f"  in    {step.folder}{'' if Path(step.folder).is_dir() else absent}")
            click.echo("  run   " + " \\\n          ".join(shlex.quote(argument) for argument in step.arguments))
        for product in planned.products:
            click.echo(f"  makes {product.pattern}")
        for note in planned.notes:
            click.echo(f"  note  {note.text} ({note.source})")
    show_findings(findings)
    _refuse(core_errors.errors(findings), order.source, plans)


@build.command(examples=("ort-mobile build doctor --target linux-x86_64",))
@_choices
@json_option
def doctor(order: BuildOrder, outputs: Outputs) -> None:
    """Show what this computer lacks for a build, and where to get it; exit code 3 if something is missing.

    Default: a library for Android, and one for this computer.
    """
    import platform
    import sys

    from pipeline.ort_build import doctor as build_doctor

    if order.config is None and order.target is None:
        this_computer = f"{'macos' if sys.platform == 'darwin' else 'linux'}-{platform.machine()}"
        names = ("android-arm64-v8a", this_computer)
        requests = tuple(request for name in names for request in replace(order, target=name).requests())
    else:
        requests = order.requests()
    checks = {check: None for request in requests for check in build_doctor.examine(request, order.source, Path.cwd())}
    outputs.write_json({"checks": list(checks)})
    if outputs.text:
        _show_checks(checks)
    build_doctor.require(tuple(checks))


@build.command(examples=("ort-mobile build run my.toml --target android-arm64 --source onnxruntime",))
@_choices
@click.option("--output", type=FILE, help="Folder to copy the libraries to.")
@click.option("--cache", type=FILE, help="Cache of builds.  [default: builds/ in the cache folder]")
@click.option("--dry-run", is_flag=True, help="Check everything, build nothing.")
@json_option
def run(output: Path | None, cache: Path | None, dry_run: bool, order: BuildOrder, outputs: Outputs) -> None:
    """Build a library, or reuse the cached build of the same plan and source."""
    from pipeline.core import errors as core_errors
    from pipeline.core import files as storage
    from pipeline.core.errors import CheckFailed
    from pipeline.ort_build import doctor as build_doctor
    from pipeline.ort_build import lint
    from pipeline.ort_build import run as build_run

    requests, source = order.requests(), order.source
    cache = cache or build_run.default_cache()
    for request in requests:
        # Everything that can be known before the first compiler runs
        findings = lint.lint(request)
        show_findings(findings)
        _refuse(core_errors.errors(findings), source, [_plan(request, source, None)])
        checks = build_doctor.examine(request, source, cache)
        if any(not check.good for check in checks):
            _show_checks(checks)
        build_doctor.require(checks)
    builds: list[dict[str, object]] = []
    for request in requests:
        if not source or dry_run:
            continue
        before = build_run.newest_build(request.target.name, request.release, request.campaign, cache)
        made = _run(request, source, cache)
        folder, record = made.folder, made.record
        builds.append({"folder": str(folder), "record": record, "fresh": made.fresh})
        for file in record.files if output else ():
            storage.copy_file(folder / file.file, Path(str(output)) / request.target.name / file.file)
        if outputs.text:
            how = f"built in {record.seconds / 60:.1f} minutes" if made.fresh else "taken from the cache"
            click.echo(f"{record.target}: ONNX Runtime {record.version}, {record.kind}, {how}")
            sizes = build_run.sizes_of_record(before) if before and made.fresh else {}
            for file in record.files:
                grown = f"  ({file.size_bytes - sizes[file.abi]:+,} bytes)" if file.abi in sizes else ""
                click.echo(f"  {file.size_bytes:>12,}  {folder / file.file}{grown}")
        findings = build_run.check_budget(build_run.sizes_of_record(record), request.settings.max_library_bytes)
        show_findings(findings)
        if over := core_errors.errors(findings):
            raise CheckFailed("; ".join(finding.what for finding in over), remedy=over[0].remedy)
    outputs.write_json({"builds": builds})


@build.command(examples=("ort-mobile build size before.aar after.aar",))
@click.argument("before", type=FILE, required=False)
@click.argument("after", type=FILE, required=False)
@click.option("--cache", type=FILE, help="Cache of builds.  [default: builds/ in the cache folder]")
@json_option
def size(before: Path | None, after: Path | None, cache: Path | None, outputs: Outputs) -> None:
    """List cached builds with their sizes, and rank operators by the bytes that they add.

    With BEFORE and AFTER (each a library, an AAR, a JAR, or a build's folder or the first letters of its name): how
    much the library of each ABI grew or shrank, and between builds what was added and removed for it.
    """
    import msgspec

    from pipeline.ort_build import run as build_run

    cache = cache or build_run.default_cache()
    if before and after:
        from pipeline.ort_build import run as build_run

        (old_sizes, old), (new_sizes, new) = build_run.measured_at(before, cache), build_run.measured_at(after, cache)
        adds = build_run.added_names(old, new) if old and new else ()
        removes = build_run.added_names(new, old) if old and new else ()
        lines, changes = [], []
        for abi in sorted(old_sizes.keys() | new_sizes.keys()):
            was, size = old_sizes.get(abi), new_sizes.get(abi)
            changes.append({"abi": abi, "before_bytes": was, "after_bytes": size})
            cells = [f"{number:,}" if number is not None else "none" for number in (was, size)]
            grown = f"{size - was:+,}" if was is not None and size is not None else ""
            lines.append(f"{abi:<12} {cells[0]:>14} -> {cells[1]:>14} {grown:>12}")
        lines += [f"{verb} {name}" for verb, names in (("adds", adds), ("removes", removes)) for name in names]
        outputs.show_lines({"changes": changes, "adds": adds, "removes": removes}, lines)
        return
    if before:
        raise click.UsageError("give both BEFORE and AFTER, or neither")
    builds = build_run.builds_in(cache)
    # What operators add among builds that differ in their operators only
    ranked = list(build_run.ranking(record for _, record in builds))
    lines = [] if builds else ["no builds yet: `ort-mobile build run` makes one"]
    for folder, record in builds:
        lines.append(f"{folder.name}  {record.target}  {record.version} {record.kind}")
        lines += [f"  {file.size_bytes:>12,}  {file.file}" for file in record.files]
    lines += [f"  {addition.size_bytes:>+12,}  {addition.abi}: {', '.join(addition.added)}" for addition in ranked]
    listed = [{"folder": str(folder), **msgspec.to_builtins(record)} for folder, record in builds]
    rows = [
        {"abi": addition.abi, "addition": {"added": addition.added, "size_bytes": addition.size_bytes}}
        for addition in ranked
    ]
    outputs.show_lines({"builds": listed, "ranking": rows}, lines)


@build.command("probe", examples=("ort-mobile build probe arm64-v8a --output probes",))
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--api-level", type=click.IntRange(21, 99), default=27, show_default=True, help="Android API level.")
@json_option
@click.option("--output", type=FILE, help="Folder to copy the programs to, as probe-TARGET.")
def build_probe(targets: tuple[str, ...], api_level: int, output: Path | None, outputs: Outputs) -> None:
    """Build the probe, the program that measures, for each TARGET.

    TARGET is host (default), an Android ABI (arm64-v8a, x86_64, ...), or linux-aarch64.

    Android builds use the NDK of ANDROID_NDK_HOME, or the package ziglang alone for 64-bit ABIs. Builds are
    cached.
    """
    import shutil

    from device_runner import build as runner_build

    built = []
    for target in targets or ("host",):
        path = runner_build.build_probe(target, api_level=api_level)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            path = Path(shutil.copy2(path, output / f"probe-{target}"))
        built.append({"target": target, "file": str(path), "size_bytes": path.stat().st_size})
    lines = (f"{probe['target']:<14} {probe['size_bytes']:>7} bytes  {probe['file']}" for probe in built)
    outputs.show_lines({"probes": built}, lines)


def _plan(request: "build_request.Request", source: Path | None, output: Path | None) -> "build_plan.BuildPlan":
    from pipeline.ort_build import plan as build_plan

    work = (output or Path("build")) / request.target.name
    tree = source or Path("onnxruntime")
    return build_plan.plan_build(request, build_plan.BuildPaths(source=str(tree.absolute()), work=str(work.absolute())))


def _refuse(errors: "tuple[Finding, ...]", source: Path | None, plans: "list[build_plan.BuildPlan]") -> None:
    """Raise CheckFailed when a plan cannot work: by the settings, or because the tree's scripts refuse it."""
    from pipeline.core.errors import CheckFailed
    from pipeline.ort_build import accepted_options

    if errors:
        raise CheckFailed(
            f"this cannot be built: {'; '.join(finding.what for finding in errors)}",
            remedy="; ".join(dict.fromkeys(finding.remedy for finding in errors)),
        )
    options = accepted_options.tree_options(source) if source else {}
    refused = [
        complaint
        for planned in plans
        for complaint in (accepted_options.unaccepted(planned, options) if options else ())
    ]
    if refused:
        raise CheckFailed(
            "the scripts of this source tree refuse the plan",
            where=str(source),
            why="; ".join(refused),
            remedy="remove that setting from [build], or take another release",
        )


def _show_checks(checks: "Iterable[build_doctor.Check]") -> None:
    for check in checks:
        mark = click.style("ok     ", fg="green") if check.good else click.style("missing", fg="red")
        click.echo(f"{mark} {check.name}: {check.present or 'not found'} ({check.why})", err=True)
        if not check.good:
            click.echo(f"        {check.remedy}", err=True)


def _run(request: "build_request.Request", source: Path, cache: Path) -> "build_run.Build":
    """Build with the last line of the log and the time shown where a terminal can show it.

    A lab's job that is cancelled gets SIGTERM: it ends the compilers as Ctrl-C does.
    """
    import os
    import signal

    from rich.console import Console
    from rich.markup import escape

    from pipeline.ort_build import doctor as build_doctor
    from pipeline.ort_build import run as build_run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Console(stderr=True).status(f"{request.target.name}: starting") as status:

        def progress(line: str, seconds: float) -> None:
            minutes, rest = divmod(int(seconds), 60)
            status.update(f"{request.target.name} {minutes}:{rest:02} {escape(line[-100:])}")

        return build_run.run_build(request, source, cache, progress, android=build_doctor.android_folders(os.environ))
