"""`ort-mobile release snippet`: code that opens the models of a bundle, for apps that take no package."""

from pathlib import Path

import click

from device_runner import safe_text
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs


@click.command(cls=cli_command.Command, examples=("ort-mobile release snippet output/my/bundle --for react-native",))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "language",
    required=True,
    help="Kind of app.",
    type=click.Choice(["kotlin", "react-native", "flutter", "maui", "cpp", "python"]),
)
@click.option("--model", metavar="NAME", help="Model.  [default: all that ship to the target]")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one that such apps run on]")
@click.option(
    "--guard",
    type=click.Path(path_type=Path),
    help="Folder for the guard's headers and samples; the code then has functions behind the guard (cpp).",
)
@cli_options.signer_option
@cli_outputs.json_option
def snippet(
    bundle: Path,
    language: str,
    model: str | None,
    target: str | None,
    guard: Path | None,
    key: Path | None,
    outputs: Outputs,
) -> None:
    """Print code that opens the models of BUNDLE with the session options that they were released with.

    Options that the package of such apps cannot set are listed in the code and on stderr. The bundle is verified
    first: give the maker's public key (--key) for one that is not your own.
    """
    from pipeline.core import files as storage
    from pipeline.features.languages.guarded import guarded
    from pipeline.features.languages.snippet import LANGUAGES, lost, openings, other_release, state_texts, text_notes
    from pipeline.features.languages.snippet import snippet as code_for
    from pipeline.release import chip_contexts, signature, target_choice
    from pipeline.release import sizes as release_sizes

    manifest = signature.verified_bundle(bundle, key)
    target_name = target_choice.target_of(bundle, manifest, LANGUAGES[language].platforms, f"{language} apps", target)
    opened = openings(manifest.content, target_name, model)
    contexts = [
        context
        for context in manifest.content.contexts
        if context.target == target_name and model in (None, context.model)
    ]
    names = {opening.model for opening in opened}
    sizes = release_sizes.sizes_of(manifest.content, target_name)
    sizes = [rows for rows in sizes if names.issuperset(row.model for row in rows)]
    ships = [shipped for shipped in manifest.content.ships if shipped.target == target_name and shipped.model in names]
    tested = sorted({(shipped.ort_release, shipped.platform) for shipped in ships})
    others = [text for release, platform in tested for text in other_release(language, release, platform)]
    models = [table for table in manifest.content.models if table.model in names]
    notes = [*others, *state_texts(models), *text_notes(models)]
    guarding = guarded(language, bundle, manifest, target_name) if guard else None
    digest = manifest.content_sha256
    code = str(code_for(language, opened, contexts, sizes, notes, guarding, models=models, digest=digest))
    missing = lost(language, opened, sizes)
    untested = list(guarding.warnings()) if guarding else []
    judged = [test.document for test in guarding.tests.values()] if guarding else []
    if guard and guarding:
        for name, content in guarding.files({opening.title: opening.name for opening in opened}).items():
            storage.write_bytes(guard / name, content if isinstance(content, bytes) else content.encode())
    files = [opening.file for opening in opened]
    files += dict.fromkeys(name for opening in opened for name in opening.weights[:1])
    files += [Path(path).name for path in chip_contexts.shipped_files(contexts)]
    files += [Path(table.text.file).name for table in models if table.text]
    document = {"target": target_name, "code": code, "files": files, "lost": missing, "runtime": others}
    outputs.write_json({**document, "self_tests": judged})
    for line in (*missing, *others, *untested):
        click.echo(safe_text.visible(f"warning: {line}"), err=True)
    if outputs.text:
        click.echo(code, nl=False)
