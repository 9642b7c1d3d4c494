"""`ort-mobile bundle delta` and `bundle apply`: updates of bundles as small files."""

from pathlib import Path

import click

from pipeline.cli import callbacks
from pipeline.cli import command as cli_command
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

FILE = click.Path(path_type=Path)


@click.command(
    cls=cli_command.Command,
    examples=("ort-mobile bundle delta old/bundle output/my/bundle --output update.delta",),
)
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--output", type=FILE, required=True, help="File to write the delta to.")
@cli_outputs.json_option
def delta(old: Path, new: Path, output: Path, outputs: Outputs) -> None:
    """Write the delta that turns bundle OLD into bundle NEW.

    Both are verified first. Each file of NEW that OLD does not have is stored in the smallest form: alone, as a patch
    of a file of OLD, or as differences of its numbers. Needs the extra `delta`.
    """
    from pipeline.features.updates.delta import write_delta

    delta = write_delta(old, new, output)
    size, whole = output.stat().st_size, sum(file.size_bytes for file in delta.files)
    rows = (f"{file.size_bytes:>13,}  {file.how:<6} {file.path}" for file in delta.files if file.how != "kept")
    total = f"delta   {output}: {size:,} bytes for a bundle of {whole:,} (digest {delta.new_digest[:16]})"
    document = {"delta": str(output), "size_bytes": size, "bundle_bytes": whole, "files": delta.files}
    outputs.show_lines(document, (*rows, total))


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile bundle apply update.delta old/bundle",
        "ort-mobile bundle apply update.delta old/bundle --key key.pub --runtime 1.29.0 --keep old/previous",
    ),
)
@click.argument("delta", type=FILE)
@click.argument("bundle", type=FILE)
@click.option("--key", type=FILE, help="Public key, PEM, of who must have signed the new bundle.")
@click.option("--keep", type=FILE, help="Folder for a copy of the old bundle, to go back to.")
@click.option("--runtime", metavar="RELEASE", help="ONNX Runtime release of the app, as in 1.29.0.")
@click.option(
    "--provider", callback=callbacks.words(), metavar="NAME,…", help="Execution providers of the app's library."
)
@click.option("--operators", type=FILE, help="Operator config that the app's reduced library was built from.")
@click.option("--target", default="", metavar="NAME", help="Target of the app.  [default: all of the bundle]")
@click.option("--allow-older", is_flag=True, help="Take a bundle that was made before BUNDLE: go back.")
@click.option("--allow-unsigned", is_flag=True, help="Replace a signed BUNDLE without --key.")
@cli_outputs.json_option
def apply(
    delta: Path,
    bundle: Path,
    key: Path | None,
    keep: Path | None,
    runtime: str | None,
    provider: tuple[str, ...],
    operators: Path | None,
    target: str,
    allow_older: bool,
    allow_unsigned: bool,
    outputs: Outputs,
) -> None:
    """Turn BUNDLE into the newer one of DELTA, at once and whole.

    BUNDLE stays as it is where it is not the one that DELTA was made for, where a byte is wrong, where the new one must
    not ship (exit code 4), and when this command is interrupted or killed. An older bundle needs --allow-older. A
    signed BUNDLE needs --key: without it anybody's would take its place (--allow-unsigned). With --runtime, --provider,
    --operators or --target, a new bundle that does not fit such an app is refused (exit code 4): its releases of ONNX
    Runtime, providers and operators, and the inputs and outputs of its models, which must be those of BUNDLE. A BUNDLE
    that is the newer one already is checked alike and stays. Needs the extra `delta`.
    """
    from pipeline.core import releases as ort_releases
    from pipeline.features.updates.delta import Allowed, apply_delta
    from pipeline.release import app_fit

    if runtime is not None:
        ort_releases.read_release(runtime, "--runtime")
    app = app_fit.App(target=target, release=runtime or "", providers=provider, operators=operators)
    asked: dict[Allowed, bool] = {"older": allow_older, "unsigned": allow_unsigned}
    allow = [name for name, given in asked.items() if given]
    digest, changed = apply_delta(delta, bundle, key=key, app=app, keep=keep, allow=allow)
    line = f"{'bundle' if changed else 'unchanged'}  {bundle} (digest {digest})"
    outputs.show_lines({"bundle": str(bundle), "digest": digest, "changed": changed}, [line])
