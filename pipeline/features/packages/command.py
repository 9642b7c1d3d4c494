"""`ort-mobile release`: from a config to a signed bundle and packages for apps, or why not; or single parts of that."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli import bundle as cli_bundle
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli import run as cli_run
from pipeline.cli.outputs import Outputs
from pipeline.core.features import Place

if TYPE_CHECKING:
    from pipeline.core.errors import CheckFailed


class _ConfigOrCommand(cli_command.OpenGroup):
    """A group that takes what is no command of its own for the arguments of `all`: `release CONFIG`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; a word that is no command is a config."""
        return super().resolve_command(ctx, args if args[0] in self.list_commands(ctx) else ["all", *args])


@click.group(
    cls=_ConfigOrCommand,
    place=Place[click.Command]("release.commands"),
    examples=(
        "ort-mobile release my.toml --key key.pem",
        "ort-mobile release android output/my/bundle --output models-repo --group com.example --version 1.0",
        "ort-mobile release apple output/my/bundle --output MyModels",
    ),
)
def release() -> None:
    """Release what a config chooses: the bundle, its signature, packages for apps; or one package of a bundle.

    `ort-mobile release CONFIG` is short for `ort-mobile release all CONFIG`. `ort-mobile bundle` has the single steps
    with a bundle.
    """


@release.command("all", examples=("ort-mobile release all my.toml --key key.pem --version 1.0",))
@click.argument("config", type=click.Path(path_type=Path))
@cli_options.output_option
@cli_options.devices_option
@cli_options.library_option
@click.option("--convert-only", is_flag=True, help="Measure nothing, as with `run`.")
@click.option("--resume", is_flag=True, help="Resume the last interrupted run of this config.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    envvar=cli_bundle.KEY,
    show_envvar=True,
    help="Private key, PEM, that signs the bundle.  [default: key of [release] in CONFIG]",
)
@click.option("--version", help="Version of the packages.  [default: version of [release] in CONFIG]")
@cli_outputs.json_option
@click.pass_context
def release_all(
    ctx: click.Context,
    /,
    config: Path,
    output: Path | None,
    devices: tuple[str, ...],
    library: str | None,
    convert_only: bool,
    resume: bool,
    key: Path | None,
    version: str | None,
    outputs: Outputs,
) -> None:
    """Run CONFIG and release what it chooses: the bundle with its evidence, its signature, and packages for apps.

    Exit code 4, with every reason, where a gate of [release] fails (accuracy, proof, budget, signature, license):
    nothing is signed or packaged then. A passphrase of the key comes from the environment variable
    ORT_MOBILE_PASSPHRASE.
    """
    from msgspec.structs import replace

    from device_runner import safe_text
    from pipeline import config as configs
    from pipeline.core import errors as core_errors
    from pipeline.features.packages.release import check_config, early_findings, gate_findings, make_release
    from pipeline.job import run as job_run

    settings, passphrase = configs.read_config(config, existing=True), os.environ.get(cli_bundle.PASSPHRASE)
    table = settings.release
    table = replace(table, key=str(key) if key else table.key, version=version or table.version)
    released = replace(settings, release=table)  # the job itself records the config as it was written
    options = job_run.JobOptions(
        output=output, devices=devices, library=library, convert_only=convert_only, resume=resume
    )
    folder = job_run.output_folder(settings, options)
    check_config(released, passphrase)
    if early := early_findings(released, library):
        cli_outputs.show_findings(early)
        raise _refusal(config, len(early))
    result = cli_run.completed_job(ctx, settings, options)
    cli_run.show_job(result, outputs)
    late = gate_findings(released, folder, result) if result.content else core_errors.errors(result.findings)
    if late:
        cli_outputs.show_findings(late if result.content else ())
        raise _refusal(config, len(late))
    if result.left or not result.content:
        click.echo("nothing was signed or packaged: see above what was not done", err=True)
        ctx.exit(result.exit_code)
    signed, packages = make_release(released, folder, passphrase)
    names: dict[str, str] = {}
    for package in packages:
        names |= package.names
        for warning in package.warnings:
            click.echo(safe_text.visible(f"warning: {warning}"), err=True)
    outputs.write_json({**cli_run.job_document(result), "signed_by": signed and signed[0], "packages": names})
    if outputs.text:
        click.echo(f"signed   {signed[0] if signed else 'by nobody'}")
        for kind, name in names.items():
            click.echo(f"{kind:<8} {name}")


def _refusal(config: Path, count: int) -> "CheckFailed":
    from pipeline.core.errors import CheckFailed

    return CheckFailed(
        "this release must not ship: nothing was signed or packaged",
        where=str(config),
        why=f"{count} {'reason speaks' if count == 1 else 'reasons speak'} against it, named above",
        remedy="fix them, or change gates in [release]",
    )
