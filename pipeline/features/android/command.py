"""`ort-mobile release android`: the models of a bundle as an Android library in a Maven repository."""

from pathlib import Path

import click

from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

CONFLICT = """
{runtime} brings ONNX Runtime {release}. Where another library of the app brings
com.microsoft.onnxruntime:onnxruntime-android, Gradle names the conflict; to take this runtime for both:
    configurations.all {{
        resolutionStrategy.capabilitiesResolution.withCapability("com.microsoft.onnxruntime", "onnxruntime-android") {{
            select("{runtime}")
        }}
    }}"""


@click.command(
    cls=cli_command.Command,
    examples=("ort-mobile release android output/my/bundle --output models-repo --group com.example --version 1.0",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder of a Maven repository, new or not."
)
@click.option("--group", required=True, help="Maven group, as in com.example.")
@click.option("--artifact", help="Maven artifact.  [default: the bundle's name with -models]")
@click.option("--version", required=True, help="Version; what was published under it never changes.")
@click.option("--package", "java_name", help="Java package of the classes.  [default: from group and artifact]")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one for Android]")
@cli_options.telemetry_option
@cli_options.signer_option
@click.option(
    "--runtime",
    metavar="AAR",
    help="A build of ONNX Runtime (AAR, or an available release) to publish beside the models as ARTIFACT-runtime, "
    "in place of the published one.",
)
@click.option(
    "--ai-pack",
    "pack_folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Put the models into a Play AI pack, a Gradle module, instead of the library; FOLDER's name is the pack's.",
)
@click.option(
    "--deny-key",
    type=click.Path(path_type=Path),
    help="Public key, PEM, of who may forbid session options on phones later (`bundle deny`)  [default: --key].",
)
@click.option(
    "--guard/--no-guard",
    default=True,
    show_default=True,
    help="The classes try accelerators on the phone before they use them, or open what was released at once.",
)
@cli_outputs.json_option
def android(
    bundle: Path,
    output: Path,
    group: str,
    artifact: str | None,
    version: str,
    java_name: str | None,
    target: str | None,
    telemetry: str,
    key: Path | None,
    runtime: str | None,
    pack_folder: Path | None,
    deny_key: Path | None,
    guard: bool,
    outputs: Outputs,
) -> None:
    """Write the models of BUNDLE as an Android library into a Maven repository, with classes that open them.

    The library has the models as assets, and for each model a class that opens it with the session options that it was
    released with: those of the device's class where a search told classes apart. Needs a JDK. The bundle is verified
    first: give the maker's public key (--key) for one that is not your own.
    """
    from pipeline import config as configs
    from pipeline.features.android.library import android_library
    from pipeline.release import signature

    manifest = signature.verified_bundle(bundle, key)
    table = configs.AndroidRelease(
        group=group,
        artifact=artifact,
        package=java_name,
        target=target,
        telemetry=configs.Telemetry(telemetry),
        runtime=runtime,
        ai_pack=str(pack_folder) if pack_folder else None,
        guard=guard,
        deny_key=str(deny_key or key) if deny_key or key else None,
    )
    library = android_library(bundle, manifest, table, version)
    warnings = library.warnings  # raises for a library of the runtime that cannot be read: before anything is written
    new = library.write(output)
    named, classes, beside = library.named, library.classes, library.beside
    document = {
        "repository": str(output),
        "dependency": named.notation,
        "classes": classes,
        "new": new,
        "onnxruntime": library.release,
        "runtime": beside.notation if beside else "",
        "self_tests": [test.document for test in library.protection.self_tests.values()],
    }
    lines = [
        f"{'wrote' if new else 'unchanged'}  {output / named.folder}",
        f"classes  {', '.join(classes)}",
        *(line for test in library.protection.self_tests.values() for line in test.lines),
        "",
        "settings.gradle.kts, in dependencyResolutionManagement { repositories { … } }:",
        f'    maven {{ url = uri("{output.absolute()}") }}',
        "build.gradle.kts of the app:",
        f'    implementation("{named.notation}")',
    ]
    if mapped := library.mapped_endings:
        listed = f'"{mapped[0]}"' if len(mapped) == 1 else 'listOf("{}")'.format('", "'.join(mapped))
        lines.append(
            f"    android {{ androidResources {{ noCompress += {listed} }} }}  // else each model is copied once"
        )
    if pack_folder:
        lines.append(f"the models are in the AI pack {pack_folder}: see its README.md")
    if not library.release:
        lines.append("No runtime is named: the app brings the library of the target, or publish it with --runtime")
    if beside:
        lines += CONFLICT.format(release=library.release, runtime=beside.notation).split("\n")
    outputs.show_lines(document, lines)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
