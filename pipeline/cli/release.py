"""`ort-mobile report`, `release` and `verify`: reports and bundles of stored results, and the check of their bytes."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.options import ci_options, database_option, json_option, progress, shows_text, write_json

if TYPE_CHECKING:
    from pipeline.check.library_proof import LibraryProof
    from pipeline.job.assemble import Assembled
    from pipeline.release.attestation import Signed
    from pipeline.release.manifest import Content


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@database_option
@click.option("--campaign", help="Id of a campaign, as --list shows.  [default: FOLDER's newest]")
@ci_options
@json_option
@click.option("--list", "list_only", is_flag=True, help="List the stored campaigns instead.")
def report(
    folder: Path, database: str | None, campaign: str | None, list_only: bool, json_to: str | None, **ci: Path | None
) -> None:
    """Write report.html, report.md, results.json and trace.json.gz again from the results stored in FOLDER.

    The table is shown as well.
    """
    from pipeline.cli.show import write_campaign
    from pipeline.job.stored import list_campaigns, stored, write_reports
    from pipeline.report import console, terminal

    if list_only:
        campaigns = list_campaigns(folder, database)
        if json_to:
            write_json({"campaigns": [{"id": known, "name": name} for known, name in campaigns.items()]}, json_to)
        for known, name in campaigns.items() if shows_text(json_to) else ():
            click.echo(f"{known}  {name}")
        return
    assembled = stored(folder, database, campaign)
    write_reports(assembled, folder)
    write_campaign(assembled.report, ci=ci)
    if json_to:
        write_json(assembled.report, json_to)
    if shows_text(json_to):
        terminal.show(assembled.report, console.open_console())


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@database_option
@click.option("--campaign", help="Id of a campaign, as `report --list` shows.  [default: FOLDER's newest]")
@json_option
@click.pass_context
def bundle(
    ctx: click.Context, /, folder: Path, database: str | None, campaign: str | None, json_to: str | None
) -> None:
    """Rebuild FOLDER/bundle from the results stored in FOLDER, and enforce size budgets.

    Exit code 4 and no bundle if a chosen artifact cannot be loaded by its target's library, or that library exceeds its
    budget; also exit code 4 if the bundle fails in that library, on computers that can run it.
    """
    from pipeline.cli.show import nothing_ships
    from pipeline.core.errors import CheckFailed, ExitCode
    from pipeline.job.ship import ship
    from pipeline.job.stored import stored
    from pipeline.release.manifest import content_digest, read_manifest

    assembled = stored(folder, database, campaign)
    _gate(assembled, folder)
    content = ship(assembled, folder, progress=progress())
    if content is None:
        raise CheckFailed(
            "nothing may ship",
            where=str(folder),
            why=nothing_ships(assembled),
            remedy="see the report for what failed",
        )
    proofs = read_manifest(folder / "bundle").proofs
    if json_to:
        made = {"bundle": str(folder / "bundle"), "digest": content_digest(content)}
        write_json({**made, "ships": content.ships, "proofs": proofs}, json_to)
    if shows_text(json_to):
        _show(content, folder)
        _show_proofs(proofs)
    ctx.exit(ExitCode.CHECK_FAILED if any(proof.failed for proof in proofs) else ExitCode.DONE)


def _show(content: "Content", folder: Path) -> None:
    from pipeline.release.manifest import content_digest

    for shipped in content.ships:
        click.echo(f"{shipped.target}: {shipped.model} {shipped.variant.name} on {shipped.provider} ({shipped.basis})")
    click.echo(f"bundle   {folder / 'bundle'} (digest {content_digest(content)[:16]})")


def _show_proofs(proofs: "tuple[LibraryProof, ...]") -> None:
    from pipeline.report import console, terminal

    for proof in proofs:
        terminal.show_proof(proof, console.open_console())


def _gate(assembled: "Assembled", folder: Path) -> None:
    """Show what speaks against shipping, and raise CheckFailed for what must not."""
    from pipeline.cli.show import show_findings
    from pipeline.core.errors import CheckFailed, errors
    from pipeline.job.gate import check_shipping

    findings = check_shipping(assembled, folder)
    show_findings(findings)
    if any(finding.where.startswith("[build]") for finding in errors(findings)):
        _show_ranking()
    if refused := errors(findings):
        raise CheckFailed(
            "this release must not ship, and no bundle was made",
            where=str(folder),
            why=f"{len(refused)} {'error speaks' if len(refused) == 1 else 'errors speak'} against it, named above",
            remedy="fix them, or change the target or the budget in the config and run it again",
        )


def _show_ranking() -> None:
    """What operators and types cost in the builds of this computer, the dearest first, where they allow it."""
    from pipeline.ort_build.history import ranking
    from pipeline.ort_build.run import builds_in, default_cache

    for abi, addition in ranking(record for _, record in builds_in(default_cache())):
        click.echo(f"  {addition.size_bytes:>+12,}  {abi}: {', '.join(addition.added)}", err=True)


def _digest(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> str:
    if text is None:
        return ""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise click.BadParameter("a digest has 64 hexadecimal digits; `ort-mobile verify BUNDLE` prints it")
    return text.lower()


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--digest", metavar="HEX", callback=_digest, help="The digest that the maker of the bundle names.")
@click.option("--key", type=click.Path(path_type=Path), help="Public key, PEM, of who must have signed it.")
@json_option
def verify(bundle: Path, digest: str, key: Path | None, json_to: str | None) -> None:
    """Check that every byte of BUNDLE matches its manifest; exit code 4 names what was changed, is missing or added,
    or failed in the library that ships.

    Where a bundle comes from is proven only by the digest that its maker names (--digest), or by its signature and the
    maker's public key (--key). With --key, what the maker attests of tests is shown; nothing is run again.
    """
    from device_runner.reading import visible
    from pipeline.release.attestation import verify_signed
    from pipeline.release.manifest import refuse_unproven, verify_bundle

    manifest = verify_bundle(bundle, digest)
    refuse_unproven(bundle, manifest)
    signed = verify_signed(bundle, manifest, key) if key else None
    if json_to:
        document = {"bundle": str(bundle), "files": len(manifest.files), "digest": manifest.content_sha256}
        by = {"signed_by": signed.fingerprint, "attested_tests": signed.tests} if signed else {}
        write_json({**document, **by}, json_to)
    if not shows_text(json_to):
        return
    click.echo(f"OK: {len(manifest.files)} files of {visible(str(bundle))} match the manifest")
    click.echo(f"digest {manifest.content_sha256}" + (" (as expected)" if digest else ""))
    if signed:
        _show_signed(signed)
    elif not digest:
        click.echo(
            "where it is from is not proven: compare its maker's digest (--digest), or check its signature (--key)",
            err=True,
        )


def _show_signed(signed: "Signed") -> None:
    """Who signed, and what they say of tests, in words that claim no more than was checked here."""
    from device_runner.reading import visible
    from pipeline.release.attestation import told

    click.echo(f"signed by the owner of the key with sha256 {signed.fingerprint}")
    if signed.tests is None:
        click.echo("the same key attests no tests")
        return
    click.echo(f"the same key attests these tests, which were not run again here: {told(signed.tests)}")
    for name in (*signed.tests.failed, *signed.tests.warned):
        click.echo(visible(f"  {'failed' if name in signed.tests.failed else 'undecided'}: {name}"))
