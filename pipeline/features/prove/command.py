"""`ort-mobile prove`: what a bundle ships, loaded and run in the library for Android or Linux that ships."""

from pathlib import Path

import click

from pipeline.cli import callbacks, provider_options
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs


def levels(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """API levels from a list with commas; those that the device android-host has, each once."""
    from device_runner.android_host import device as android_host_device

    given = []
    for word in callbacks.words()(ctx, param, value):
        if not (word.isascii() and word.isdigit() and int(word) in android_host_device.API_LEVELS):
            limits = f"{android_host_device.API_LEVELS.start} to {android_host_device.API_LEVELS.stop - 1}"
            raise click.BadParameter(f"{word!r} is no API level from {limits}, as in 27,29,31", ctx, param)
        given.append(int(word))
    return tuple(dict.fromkeys(given))


@click.command(cls=cli_command.Command, examples=("ort-mobile prove output/my/bundle --library app.aar",))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--library",
    required=True,
    metavar="AAR|JAR|SO|RELEASE",
    help="The library that your app ships: a file, android:1.29.0, wheel:1.29.0 or jvm:1.28.0.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="Target that ships it; repeatable.  [default: all of the library's platform]",
)
@click.option(
    "--api-level",
    "api_levels",
    callback=levels,
    metavar="N,N",
    help="API levels to emulate.  [default: each target's lowest, and 31: NNAPI is the same from there on]",
)
@click.option(
    "--abi",
    default="auto",
    callback=callbacks.words(),
    show_default=True,
    metavar="auto|ABI,…",
    help="ABIs of the library to run; auto: this computer's own as a first look, then those of the targets.",
)
@click.option(
    "--cpu",
    callback=callbacks.words(),
    metavar="all|CPU,…",
    help="CPUs to emulate for another processor's ABI; all: every class that phones have and QEMU.  "
    "[default: cortex-a53,cortex-a76]",
)
@click.option(
    "--chip",
    callback=callbacks.words(),
    metavar="CHIP,…",
    help="Snapdragons whose contexts are run in a simulator (needs the extra qnn).  [default: all, where one is here]",
)
@click.option(
    "--driver", type=click.Path(path_type=Path), help="Driver profile of a phone, from `ort-mobile devices --profile`."
)
@click.option(
    "--vulkan",
    default="",
    metavar="DRIVER",
    help="Vulkan driver that plays a GPU for webgpu: swiftshader, lavapipe, or a file.  [default: what is installed]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, max=86_400, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which a run is considered hung; ten times as long in an emulator.",
)
@cli_outputs.json_option
def prove(
    bundle: Path,
    library: str,
    targets: tuple[str, ...],
    api_levels: tuple[int, ...],
    abi: tuple[str, ...],
    cpu: tuple[str, ...],
    chip: tuple[str, ...],
    driver: Path | None,
    vulkan: str,
    timeout: float,
    outputs: Outputs,
) -> None:
    """Load and run all artifacts of BUNDLE in the library of your app, on this computer (Linux).

    An AAR is run for Android targets, a JAR or a wheel for Linux targets. On x86-64, ARM's ABIs run in qemu-user
    (apt-get install qemu-user libc6-arm64-cross), once for each CPU of --cpu.

    Every artifact runs with every provider and flag combination that the bundle's config has, and its outputs are
    compared with the original model's. Exit code 4 if anything fails; each failure is reported with cause and remedy.
    """
    from device_runner.android_host import device as android_host_device
    from pipeline.core import abis as core_abis
    from pipeline.core import errors as core_errors
    from pipeline.features.prove import ProofOrder, prove_bundle
    from pipeline.report import formats

    order = ProofOrder(
        library=library,
        targets=targets,
        api_levels=api_levels,
        abis=tuple(core_abis.read_abi(name, "--abi") for name in abi if name != "auto"),
        cpus=cpu,
        chips=provider_options.chips_named(chip, "--chip"),
        driver=android_host_device.read_profile(driver) if driver else None,
        timeout_seconds=timeout,
        vulkan=vulkan,
    )
    proof = prove_bundle(bundle, order, cli_options.progress())
    code = core_errors.ExitCode.CHECK_FAILED if proof.failed else core_errors.ExitCode.DONE
    outputs.finish(proof, formats.proof_parts(proof), code=code, failed=proof.objections)
