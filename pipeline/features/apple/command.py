"""`ort-mobile release apple`: the models of a bundle as a Swift package."""

from pathlib import Path

import click

from device_runner import safe_text
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs


@click.command(
    cls=cli_command.Command,
    examples=("ort-mobile release apple output/my/bundle --output MyModels --name MyModels",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the Swift package.")
@click.option("--name", help="Name of package, product and module.  [default: the bundle's name with Models]")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one for iOS or macOS]")
@click.option(
    "--onnxruntime",
    "version",
    metavar="X.Y.Z",
    help="Version of ONNX Runtime's Swift package.  [default: the newest known of the target's release]",
)
@cli_options.telemetry_option
@cli_options.signer_option
@click.option(
    "--deny-key",
    type=click.Path(path_type=Path),
    help="Public key, PEM, of who may forbid session options later (`bundle deny`)  [default: --key].",
)
@click.option(
    "--guard/--no-guard",
    default=True,
    show_default=True,
    help="The classes try accelerators on the device before they use them, or open what was released at once.",
)
@click.option("--runtime", type=click.Path(path_type=Path), help="Build of ONNX Runtime: xcframework, folder or ZIP.")
@click.option("--runtime-url", metavar="URL", help="Where apps get it: the package then has address and checksum.")
@cli_outputs.json_option
def apple(
    bundle: Path,
    output: Path,
    name: str | None,
    target: str | None,
    version: str | None,
    telemetry: str,
    key: Path | None,
    deny_key: Path | None,
    guard: bool,
    runtime: Path | None,
    runtime_url: str | None,
    outputs: Outputs,
) -> None:
    """Write the models of BUNDLE as a Swift package, with classes that open them.

    The package has the models as resources, and for each model a class that opens it with the session options that it
    was released with. What ONNX Runtime's Objective-C API cannot set is reported; models that it cannot run are
    refused. The bundle is verified first: give the maker's public key (--key) for one that is not your own. It depends
    on ONNX Runtime's own Swift package, or has a build of yours.
    """
    from pipeline import config as configs
    from pipeline.features.apple.package import swift_package, write_package
    from pipeline.release import signature

    manifest = signature.verified_bundle(bundle, key)
    table = configs.AppleRelease(
        name=name,
        target=target,
        folder=str(output),
        onnxruntime=version,
        telemetry=configs.Telemetry(telemetry),
        guard=guard,
        deny_key=str(deny_key or key) if deny_key or key else None,
        runtime=str(runtime) if runtime else None,
        runtime_url=runtime_url,
    )
    with swift_package(bundle, manifest, table) as package:
        new = write_package(package, output)
    for line in package.warnings:
        click.echo(safe_text.visible(f"warning: {line}"), err=True)
    outputs.show_lines(
        {
            "package": str(output),
            "product": package.name,
            "classes": package.classes,
            "new": new,
            "onnxruntime": package.requirement,
            "warnings": package.warnings,
            "self_tests": [test.document for test in package.self_tests],
        },
        (
            f"{'wrote' if new else 'unchanged'}  {output}",
            f"classes  {', '.join(package.classes)}",
            *(line for test in package.self_tests for line in test.lines),
            "",
            "Xcode: File > Add Package Dependencies > Add Local. Package.swift of the app:",
            f'    .package(path: "{output.absolute()}")',
            f'    .product(name: "{package.name}", package: "{output.absolute().name}")',
        ),
    )
