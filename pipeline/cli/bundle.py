"""`report` and `bundle`: reports and bundles of stored results, signatures, the proof of a bundle's bytes."""

import os
import re
from pathlib import Path

import click

from device_runner import safe_text
from pipeline.cli.command import Command, OpenGroup
from pipeline.cli.options import database_option, progress
from pipeline.cli.outputs import Outputs, ci_options, json_option, show_findings
from pipeline.core import files as storage
from pipeline.core.features import Place

KEY, PASSPHRASE = "ORT_MOBILE_KEY", "ORT_MOBILE_PASSPHRASE"
"""Environment variables of the private key."""


@click.command(cls=Command, examples=("ort-mobile report output/my",))
@click.argument("folder", type=click.Path(path_type=Path))
@database_option
@click.option("--campaign", help="Id of a campaign, as --list shows.  [default: FOLDER's newest]")
@ci_options
@json_option
@click.option("--list", "list_only", is_flag=True, help="List the stored campaigns instead.")
@click.pass_context
def report(
    ctx: click.Context, /, folder: Path, database: str | None, campaign: str | None, list_only: bool, outputs: Outputs
) -> None:
    """Write report.html, report.md, results.json and trace.json.gz again from the results stored in FOLDER.

    The table is shown as well. Exit code 4 if a search found that no candidate keeps to its constraints, 1 if one found
    no answer; what else a campaign ended with is its own command's to say.
    """
    from pipeline.job import stored as job_stored

    if list_only:
        campaigns = job_stored.list_campaigns(folder, database)
        document = {"campaigns": [{"id": campaign_id, "name": name} for campaign_id, name in campaigns.items()]}
        outputs.show_lines(document, map("  ".join, campaigns.items()))
        return
    from pipeline.job import reports as job_reports
    from pipeline.report import ci_parts, formats

    assembled = job_stored.stored(folder, database, campaign)
    job_reports.write_reports(assembled, folder)
    outputs.write_ci(ci_parts.of_campaign(assembled.report))
    outputs.write_json(assembled.report)
    if outputs.text:
        formats.show_report(assembled.report)
    tuned = assembled.report.tuned
    if tuned and tuned.unanswered:
        outputs.show_errors(answer.why_none for answer in tuned.answers if answer.why_none)
        ctx.exit(assembled.exit_code)


@click.group(cls=OpenGroup, place=Place[click.Command]("bundle.commands"))
def bundle() -> None:
    """Sign, verify, update or rebuild a bundle: the folder of what a config chose, which apps and packages take."""


@bundle.command(examples=("ort-mobile bundle rebuild output/my",))
@click.argument("folder", type=click.Path(path_type=Path))
@database_option
@click.option("--campaign", help="Id of a campaign, as `report --list` shows.  [default: FOLDER's newest]")
@json_option
def rebuild(folder: Path, database: str | None, campaign: str | None, outputs: Outputs) -> None:
    """Rebuild FOLDER/bundle from the results stored in FOLDER, and enforce size budgets.

    Exit code 4 and no bundle if a chosen artifact cannot be loaded by its target's library, or that library exceeds its
    budget; also exit code 4 if the bundle fails in that library, on computers that can run it.
    """
    from pipeline.cli.run import nothing_ships
    from pipeline.core import errors as core_errors
    from pipeline.core.errors import CheckFailed
    from pipeline.job import assemble, objections
    from pipeline.job import stored as job_stored
    from pipeline.ort_build import run as build_run
    from pipeline.release import chip_contexts
    from pipeline.release import manifest as bundle_manifest
    from pipeline.report import formats, wording

    assembled = job_stored.stored(folder, database, campaign)
    findings = objections.check_shipping(assembled, folder)
    show_findings(findings)
    refused = core_errors.errors(findings)
    if any(finding.code == core_errors.BUDGET for finding in refused):
        # What operators and types cost in the builds of this computer, the dearest first, where they allow it.
        for addition in build_run.ranking(record for _, record in build_run.builds_in(build_run.default_cache())):
            click.echo(f"  {addition.size_bytes:>+12,}  {addition.abi}: {', '.join(addition.added)}", err=True)
    if refused:
        raise CheckFailed(
            "this release must not ship, and no bundle was made",
            where=str(folder),
            why=f"{len(refused)} {'error speaks' if len(refused) == 1 else 'errors speak'} against it, named above",
            remedy="fix them, or change the target or the budget in the config and run it again",
        )
    content = assemble.ship(assembled, folder, progress=progress())
    if content is None:
        raise CheckFailed(
            "nothing may ship",
            where=str(folder),
            why=nothing_ships(assembled),
            remedy="see the report for what failed",
        )
    proofs = bundle_manifest.read_manifest(folder / "bundle").proofs
    digest = bundle_manifest.content_digest(content)
    lines = (
        *(
            f"{shipped.target}: {shipped.model} {shipped.variant.name} on {shipped.runs[0].provider} ({shipped.basis})"
            for shipped in content.ships
        ),
        *map(chip_contexts.context_line, content.contexts),
        f"bundle   {folder / 'bundle'} (digest {digest[:16]})",
    )
    outputs.finish(
        {
            "bundle": str(folder / "bundle"),
            "digest": digest,
            "ships": content.ships,
            "contexts": content.contexts,
            "proofs": proofs,
        },
        [
            *(wording.Line(line, wrap=False) for line in lines),
            *(part for proof in proofs for part in formats.proof_parts(proof)),
        ],
        failed=(text for proof in proofs for text in proof.objections),
        code=core_errors.ExitCode.CHECK_FAILED if any(proof.failed for proof in proofs) else core_errors.ExitCode.DONE,
    )


@bundle.command(examples=("ort-mobile bundle sign output/my/bundle --key key.pem",))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key", type=click.Path(path_type=Path), required=True, help="Private key, PEM: ECDSA on P-256, P-384 or P-521."
)
@json_option
def sign(bundle: Path, key: Path, outputs: Outputs) -> None:
    """Sign BUNDLE with a private key: OpenSSF Model Signing v1.0, in BUNDLE/bundle.sig.

    The bundle is verified first. What was tested of it is signed with the same key as an in-toto test result, in
    BUNDLE/evidence/test-result.intoto.jsonl. A passphrase of the key comes from the environment variable
    ORT_MOBILE_PASSPHRASE. `ort-mobile bundle verify BUNDLE --key PUBLIC` checks both; the program model_signing checks
    the signature. Needs the extra `sign`.
    """
    from pipeline.release import manifest as bundle_manifest
    from pipeline.release import signature

    signature.remove_leftovers(bundle)
    manifest = bundle_manifest.verify_bundle(bundle)
    bundle_manifest.refuse_unproven(bundle, manifest)
    if (bundle.resolve().parent / storage.DATABASE).is_file():
        from pipeline.job import assemble

        assemble.refuse_unrecorded(bundle, manifest)
    fingerprint, tests = signature.sign(bundle, manifest, key, os.environ.get(PASSPHRASE))
    lines = (
        f"signed  {bundle / bundle_manifest.SIGNATURE_FILE}",
        f"tests   {signature.results_text(tests) if tests else 'none known, none attested'}",
        f"key     sha256 {fingerprint} (of the public key as PEM)",
    )
    document = {
        "bundle": str(bundle),
        "signature": bundle_manifest.SIGNATURE_FILE,
        "key_sha256": fingerprint,
        "tests": tests,
    }
    outputs.show_lines(document, lines)


def _digest(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> str:
    if text is None:
        return ""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise click.BadParameter("a digest has 64 hexadecimal digits; `ort-mobile bundle verify BUNDLE` prints it")
    return text.lower()


@bundle.command(
    examples=(
        "ort-mobile bundle verify output/my/bundle",
        "ort-mobile bundle verify output/my/bundle --key key.pub",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--digest",
    metavar="HEX",
    callback=_digest,
    help="The digest that the maker names, of the content or of the manifest.",
)
@click.option("--key", type=click.Path(path_type=Path), help="Public key, PEM, of who must have signed it.")
@json_option
def verify(bundle: Path, digest: str, key: Path | None, outputs: Outputs) -> None:
    """Check that every byte of BUNDLE matches its manifest; exit code 4 names what was changed, is missing or added,
    failed in the library that ships, or is no file that the app's release opens.

    Where a bundle comes from is proven only by a digest that its maker names (--digest), or by its signature and the
    maker's public key (--key). The digest of the content covers what ships, not what was measured and tested; that of
    the manifest, and the signature, cover every file. With --key, what the maker attests of tests is shown; nothing is
    run again.
    """
    from pipeline.release import manifest as bundle_manifest
    from pipeline.release import opened

    manifest = bundle_manifest.verify_bundle(bundle, digest)
    bundle_manifest.refuse_unproven(bundle, manifest)
    opened.refuse_unopened(bundle, manifest)
    signed = None
    if key:
        from pipeline.release import signature

        signed = signature.verify_signed(bundle, manifest, key)
    whole = bundle_manifest.manifest_digest(bundle)
    content = [file.path for file in manifest.content.files]
    beside = [file.path for file in manifest.files if file not in manifest.content.files]
    if outputs.json_to:
        document = {
            "bundle": str(bundle),
            "files": len(manifest.files),
            "digest": manifest.content_sha256,
            "manifest_digest": whole,
            "content": content,
            "beside_content": beside,
        }
        by = {"signed_by": signed[0], "attested_tests": signed[1]} if signed else {}
        outputs.write_json({**document, **by})
    if not outputs.text:
        return
    click.echo(f"OK: {len(manifest.files)} files of {safe_text.visible(str(bundle))} match the manifest")
    expected = {digest: " (as expected)"}
    click.echo(f"digest {manifest.content_sha256}{expected.get(manifest.content_sha256, '')}")
    click.echo(f"  covers {_named(content)}")
    click.echo(
        f"  not what was measured and tested: {_named([*beside, f'the evidence in {bundle_manifest.MANIFEST_FILE}'])}"
    )
    click.echo(f"digest of the manifest {whole}{expected.get(whole, '')}")
    click.echo("  covers every file")
    if signed:
        # Who signed, and what they say of tests, in words that claim no more than was checked here
        from pipeline.release import signature

        fingerprint, tests = signed
        click.echo(f"signed by the owner of the key with sha256 {fingerprint}")
        if tests is None:
            click.echo("the same key attests no tests")
            return
        click.echo(f"the same key attests these tests, which were not run again here: {signature.results_text(tests)}")
        for name in (*tests.failed, *tests.warned):
            click.echo(safe_text.visible(f"  {'failed' if name in tests.failed else 'undecided'}: {name}"))
    elif not digest:
        click.echo(
            "where it is from is not proven: compare its maker's digest (--digest), or check its signature (--key)",
            err=True,
        )


def _named(paths: list[str]) -> str:
    """Files by name, not more than a screen holds; the JSON has all."""
    more = f" and {len(paths) - 20:,} more (--json has all)" if len(paths) > 20 else ""
    return safe_text.visible(", ".join(paths[:20])) + more
