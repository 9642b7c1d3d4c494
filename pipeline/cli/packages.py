"""`ort-mobile release`: the bundle of stored results, and packages of a bundle for apps."""

from pathlib import Path

import click

from device_runner.reading import visible
from pipeline.cli.command import Group
from pipeline.cli.options import json_option, shows_text, write_json
from pipeline.cli.release import bundle as bundle_command
from pipeline.cli.ship import release_all

CONFLICT = """
{runtime} brings ONNX Runtime {release}. Where another library of the app brings
com.microsoft.onnxruntime:onnxruntime-android, Gradle names the conflict; to take this runtime for both:
    configurations.all {{
        resolutionStrategy.capabilitiesResolution.withCapability("com.microsoft.onnxruntime", "onnxruntime-android") {{
            select("{runtime}")
        }}
    }}"""


class _FolderOrCommand(Group):
    """A group that takes what is no command of its own for the arguments of `bundle`: `release FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; options of `bundle` may come first."""
        of_bundle = args and args[0].startswith("-") and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, ["bundle", *args] if of_bundle else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; a word that is no command is a config, or the folder of a job."""
        whole = "all" if args[0].endswith(".toml") else "bundle"
        return super().resolve_command(ctx, args if args[0] in self.commands else [whole, *args])


@click.group(cls=_FolderOrCommand)
def release() -> None:
    """Release what a config chooses: the bundle, its signature, packages for apps; or single parts of that.

    `ort-mobile release CONFIG` is short for `ort-mobile release all CONFIG`, and `ort-mobile release FOLDER` for
    `ort-mobile release bundle FOLDER`.
    """


release.add_command(bundle_command)
release.add_command(release_all)


@release.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder of a Maven repository, new or not."
)
@click.option("--group", required=True, help="Maven group, as in com.example.")
@click.option("--artifact", help="Maven artifact.  [default: the bundle's name with -models]")
@click.option("--version", required=True, help="Version; what was published under it never changes.")
@click.option("--package", "java_name", help="Java package of the classes.  [default: from group and artifact]")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one for Android]")
@click.option(
    "--telemetry",
    type=click.Choice(["default", "off"]),
    default="default",
    show_default=True,
    help="off: the classes switch ONNX Runtime's telemetry off before they open a model.",
)
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
@json_option
def android(
    bundle: Path, output: Path, group: str, artifact: str | None, version: str, java_name: str | None,
    target: str | None, telemetry: str, runtime: str | None, pack_folder: Path | None,
    json_to: str | None,
) -> None:  # fmt: skip
    """Write the models of BUNDLE as an Android library into a Maven repository, with classes that open them.

    The library has the models as assets, and for each model a class that opens it with the session options that it was
    released with: those of the device's class where a search told classes apart. Needs a JDK. The bundle is verified
    first.
    """
    from pipeline.release.android.library import AndroidOrder, android_library
    from pipeline.release.manifest import refuse_unproven, verify_bundle

    manifest = verify_bundle(bundle)
    refuse_unproven(bundle, manifest)
    order = AndroidOrder(
        group=group, artifact=artifact, version=version, package=java_name, target=target,
        telemetry=telemetry != "off", runtime=runtime, pack=pack_folder,
    )  # fmt: skip
    made = android_library(bundle, manifest, order)
    new = made.write(output)
    named, classes, own, beside = made.named, made.classes, made.runtime, made.beside
    if json_to:
        document = {"repository": str(output), "dependency": named.notation, "classes": classes, "new": new}
        release = own.release if own else made.package.release
        write_json({**document, "onnxruntime": release, "runtime": beside.notation if beside else ""}, json_to)
    if shows_text(json_to):
        click.echo(f"{'wrote' if new else 'unchanged'}  {output / named.folder}")
        click.echo(f"classes  {', '.join(classes)}")
        for warning in own.warnings if own else ():
            click.echo(f"warning: {warning}", err=True)
        click.echo("\nsettings.gradle.kts, in dependencyResolutionManagement { repositories { … } }:")
        click.echo(f'    maven {{ url = uri("{output.absolute()}") }}')
        click.echo("build.gradle.kts of the app:")
        click.echo(f'    implementation("{named.notation}")')
        click.echo('    android { androidResources { noCompress += "ort" } }  // else each model is copied once')
        if pack_folder:
            click.echo(f"the models are in the AI pack {pack_folder}: see its README.md")
        if not made.package.release and not own:
            click.echo("No runtime is named: the app brings the library of the target, or publish it with --runtime")
        if own and beside:
            click.echo(CONFLICT.format(release=own.release, runtime=beside.notation))


@release.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the Swift package.")
@click.option("--name", help="Name of package, product and module.  [default: the bundle's name with Models]")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one for iOS or macOS]")
@click.option(
    "--onnxruntime", "version", metavar="X.Y.Z",
    help="Version of ONNX Runtime's Swift package.  [default: the newest known of the target's release]",
)  # fmt: skip
@click.option("--runtime", type=click.Path(path_type=Path), help="Build of ONNX Runtime: xcframework, folder or ZIP.")
@click.option("--runtime-url", metavar="URL", help="Where apps get it: the package then has address and checksum.")
@json_option
def apple(
    bundle: Path, output: Path, name: str | None, target: str | None, version: str | None, runtime: Path | None,
    runtime_url: str | None, json_to: str | None,
) -> None:  # fmt: skip
    """Write the models of BUNDLE as a Swift package, with classes that open them.

    The package has the models as resources, and for each model a class that opens it with the session options that it
    was released with. What ONNX Runtime's Objective-C API cannot set is reported; models that it cannot run are
    refused. The bundle is verified first. It depends on ONNX Runtime's own Swift package, or has a build of yours.
    """
    from pipeline.release.apple.package import swift_package, write_package
    from pipeline.release.apple.runtime import own_runtime
    from pipeline.release.manifest import refuse_unproven, verify_bundle

    manifest = verify_bundle(bundle)
    refuse_unproven(bundle, manifest)
    with own_runtime(runtime, runtime_url) as own:
        package = swift_package(bundle, manifest, name=name, target=target, version=version, runtime=own)
        new = write_package(package, output)
    if json_to:
        document = {"package": str(output), "product": package.name, "classes": package.classes, "new": new}
        write_json({**document, "onnxruntime": package.requirement, "warnings": package.warnings}, json_to)
    for line in package.warnings:
        click.echo(visible(f"warning: {line}"), err=True)
    if shows_text(json_to):
        click.echo(f"{'wrote' if new else 'unchanged'}  {output}")
        click.echo(f"classes  {', '.join(package.classes)}")
        click.echo("\nXcode: File > Add Package Dependencies > Add Local. Package.swift of the app:")
        click.echo(f'    .package(path: "{output.absolute()}")')
        click.echo(f'    .product(name: "{package.name}", package: "{output.absolute().name}")')


@release.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--for", "language", required=True, help="Kind of app.",
    type=click.Choice(["react-native", "flutter", "maui", "cpp", "python"]),
)  # fmt: skip
@click.option("--model", metavar="NAME", help="Model.  [default: all that ship to the target]")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one that such apps run on]")
@json_option
def snippet(bundle: Path, language: str, model: str | None, target: str | None, json_to: str | None) -> None:
    """Print code that opens the models of BUNDLE with the session options that they were released with.

    Options that the package of such apps cannot set are listed in the code and on stderr. The bundle is verified first.
    """
    from pipeline.release.app_models import target_of
    from pipeline.release.manifest import refuse_unproven, verify_bundle
    from pipeline.release.snippet import LANGUAGES, lost, openings
    from pipeline.release.snippet import snippet as code_for

    manifest = verify_bundle(bundle)
    refuse_unproven(bundle, manifest)
    wanted = target_of(bundle, manifest, LANGUAGES[language].platforms, f"{language} apps", target)
    opened = openings(manifest.content, wanted, model)
    code, missing = code_for(language, opened), lost(language, opened)
    if json_to:
        write_json({"target": wanted, "code": code, "files": [one.file for one in opened], "lost": missing}, json_to)
    for line in missing:
        click.echo(visible(f"warning: {line}"), err=True)
    if shows_text(json_to):
        click.echo(code, nl=False)
