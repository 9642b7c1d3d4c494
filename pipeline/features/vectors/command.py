"""`ort-mobile bundle replay`: the test vectors of a bundle, given again."""

from pathlib import Path

import click

from pipeline.cli import command as cli_command
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile bundle replay output/my/bundle",
        "ort-mobile bundle replay output/my/bundle --device android-host:android:1.29.0",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--device",
    default="",
    help="Device, as in android-host:android:1.29.0.  [default: the library of each target's release]",
)
@cli_outputs.json_option
@click.pass_context
def replay(ctx: click.Context, /, bundle: Path, device: str, outputs: Outputs) -> None:
    """Give the test vectors of BUNDLE to its files again, and compare what they give in all bits.

    A bundle keeps vectors of models with `takes` or `gives`, and of features: a few small samples of what an app has,
    and what the file that ships gave for each. Exit code 4 where an output differs by more than another release or
    processor may change, 1 where a model has no vectors or they could not be given again.
    """
    from pipeline.core import errors as core_errors
    from pipeline.features.vectors.replay import replayed
    from pipeline.release import manifest as bundle_manifest

    manifest = bundle_manifest.verify_bundle(bundle)
    replays = list(replayed(bundle, manifest, device))
    outputs.show_lines(
        {"bundle": str(bundle), "replays": replays},
        [replay.text for replay in replays] or ["the bundle keeps no vectors"],
    )
    if any(replay.failed for replay in replays):
        ctx.exit(core_errors.ExitCode.CHECK_FAILED)
    if any(replay.why for replay in replays):
        ctx.exit(core_errors.ExitCode.SOME_FAILED)
