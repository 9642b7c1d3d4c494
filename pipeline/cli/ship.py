"""`ort-mobile release all` and `sign`: from a config to a signed bundle and packages for apps, or why not."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.options import (
    devices_option,
    json_option,
    library_option,
    output_option,
    shows_text,
    write_json,
)
from pipeline.cli.run import completed_job

if TYPE_CHECKING:
    from pipeline.core.errors import CheckFailed

KEY, PASSPHRASE = "ORT_MOBILE_KEY", "ORT_MOBILE_PASSPHRASE"


@click.command("all", cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@output_option
@devices_option
@library_option
@click.option("--convert-only", is_flag=True, help="Measure nothing, as with `run`.")
@click.option("--resume", is_flag=True, help="Resume the last interrupted run of this config.")
@click.option(
    "--key", type=click.Path(path_type=Path), envvar=KEY, show_envvar=True,
    help="Private key, PEM, that signs the bundle.  [default: key of [release] in CONFIG]",
)  # fmt: skip
@click.option("--version", help="Version of the packages.  [default: version of [release] in CONFIG]")
@json_option
@click.pass_context
def release_all(
    ctx: click.Context, /, config: Path, output: Path | None, devices: tuple[str, ...], library: str | None,
    convert_only: bool, resume: bool, key: Path | None, version: str | None, json_to: str | None,
) -> None:  # fmt: skip
    """Run CONFIG and release what it chooses: the bundle with its evidence, its signature, and packages for apps.

    Exit code 4, with every reason, where a gate of [release] fails (accuracy, proof, budget, signature, license):
    nothing is signed or packaged then. A passphrase of the key comes from the environment variable
    ORT_MOBILE_PASSPHRASE.
    """
    from device_runner.reading import visible
    from pipeline.cli.show import job_document, show_findings, show_job
    from pipeline.config import read_config
    from pipeline.core.errors import errors
    from pipeline.job.campaign import JobOptions
    from pipeline.job.release import ReleaseOrder, check_order, early_findings, gate_findings, make_release
    from pipeline.job.run import output_folder

    settings = read_config(config, existing=True)
    own = settings.release
    options = JobOptions(output=output, devices=devices, library=library, convert_only=convert_only, resume=resume)
    order = ReleaseOrder(
        config=settings,
        folder=output_folder(settings, options),
        key=key or (Path(own.key) if own.key else None),
        passphrase=os.environ.get(PASSPHRASE),
        version=version or own.version,
    )
    check_order(order)
    if early := early_findings(order):
        show_findings(early)
        raise _refusal(config, len(early))
    result = completed_job(ctx, settings, options)
    show_job(result, text=shows_text(json_to))
    late = gate_findings(order, result.assembled, result.findings) if result.content else errors(result.findings)
    if late:
        show_findings(late if result.content else ())
        raise _refusal(config, len(late))
    if result.left or not result.content:
        click.echo("nothing was signed or packaged: see above what was not done", err=True)
        ctx.exit(result.exit_code)
    released = make_release(order)
    for line in released.warnings:
        click.echo(visible(f"warning: {line}"), err=True)
    if json_to:
        write_json({**job_document(result), "signed_by": released.signed and released.signed.fingerprint,
                    "packages": released.packages}, json_to)  # fmt: skip
    if shows_text(json_to):
        click.echo(f"signed   {released.signed.fingerprint if released.signed else 'by nobody'}")
        for kind, name in released.packages.items():
            click.echo(f"{kind:<8} {name}")


def _refusal(config: Path, count: int) -> "CheckFailed":
    from pipeline.core.errors import CheckFailed

    return CheckFailed(
        "this release must not ship: nothing was signed or packaged",
        where=str(config),
        why=f"{count} {'reason speaks' if count == 1 else 'reasons speak'} against it, named above",
        remedy="fix them, or change gates in [release]",
    )


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key", type=click.Path(path_type=Path), required=True, help="Private key, PEM: ECDSA on P-256, P-384 or P-521."
)
@json_option
def sign(bundle: Path, key: Path, json_to: str | None) -> None:
    """Sign BUNDLE with a private key: OpenSSF Model Signing v1.0, in BUNDLE/bundle.sig.

    The bundle is verified first. What was tested of it is signed with the same key as an in-toto test result, in
    BUNDLE/evidence/test-result.intoto.jsonl. A passphrase of the key comes from the environment variable
    ORT_MOBILE_PASSPHRASE. `ort-mobile verify BUNDLE --key PUBLIC` checks both; the program model_signing checks the
    signature. Needs the extra `sign`.
    """
    from pipeline.release import attestation
    from pipeline.release.manifest import SIGNATURE_FILE, refuse_unproven, verify_bundle

    manifest = verify_bundle(bundle)
    refuse_unproven(bundle, manifest)
    signed = attestation.sign(bundle, manifest, key, os.environ.get(PASSPHRASE))
    if json_to:
        document = {"bundle": str(bundle), "signature": SIGNATURE_FILE, "key_sha256": signed.fingerprint}
        write_json({**document, "tests": signed.tests}, json_to)
    if shows_text(json_to):
        click.echo(f"signed  {bundle / SIGNATURE_FILE}")
        click.echo(f"tests   {attestation.told(signed.tests) if signed.tests else 'none known, none attested'}")
        click.echo(f"key     sha256 {signed.fingerprint} (of the public key as PEM)")
