"""Options that several commands share and no other file has: devices, folders, libraries, precisions."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.callbacks import (
    library_name,
    pairs,
    words,
)
from pipeline.cli.outputs import quiet

if TYPE_CHECKING:
    from pipeline.core.progress import Progress


LEVELS = ("none", "basic", "extended", "layout", "all")
"""Optimization levels, as options name them."""

devices_option = click.option(
    "--device", "devices", multiple=True, help="local, adb:SERIAL or adb:*; overrides the config."
)
wait_option = click.option(
    "--wait",
    "device_wait_seconds",
    type=click.FloatRange(0, 604_800),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for devices that other processes of this computer use.  [default: 0]",
)
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Output folder.  [default: output/NAME in the current folder]",
)

telemetry_option = click.option(
    "--telemetry",
    type=click.Choice(["default", "off"]),
    default="default",
    show_default=True,
    help="off: the classes switch ONNX Runtime's telemetry off before they open a model.",
)
signer_option = click.option(
    "--key", type=click.Path(path_type=Path), help="Public key, PEM, of who must have signed the bundle."
)
database_option = click.option(
    "--database", metavar="URL", help="SQLAlchemy URL of the results.  [default: what FOLDER was made with]"
)


def progress() -> "Progress":
    """How a command shows its progress."""
    from pipeline.core import progress as core_progress

    return core_progress.progress_for(quiet=quiet())


library_option = click.option(
    "--library",
    callback=library_name,
    metavar="FILE|NAME",
    help="libonnxruntime to run with (.so, AAR, or a release such as android:1.29.0), instead of the device's default.",
)

perf_test_option = click.option(
    "--perf-test",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PROGRAM",
    help="Measure with this onnxruntime_perf_test instead of ort-mobile's program.",
)

plugin_option = click.option(
    "--plugin",
    "plugins",
    metavar="NAME=FILE,…",
    multiple=True,
    callback=lambda *given: {name: tuple(files.split(",")) for name, files in pairs(*given).items()},
    help="Library of a plugin execution provider, and further files that it loads; repeatable. `qnn` on Linux x86-64 "
    "needs none: the extra `qnn` installs it.",
)

custom_ops_option = click.option(
    "--custom-ops",
    multiple=True,
    metavar="LIBRARY",
    help="Library of custom operators, an AAR or xcframework (ZIP) of them; repeatable: those for this computer, and "
    "for the device, are registered.",
)
"""`Command` registers them; no function gets the value."""

precision_option = click.option(
    "--precision",
    "precisions",
    callback=words(),
    metavar="NAME,…",
    help="Precisions: float (the model as it is), fp16, int8, int8-nnapi, or auto for what suits the providers. Those "
    "of 8 bits take ranges from --test-data; docs/reference/precisions.md has all names.  [default: float]",
)

keep_float_option = click.option(
    "--keep-float",
    callback=words(),
    metavar="NODE,…",
    help="Names of nodes that stay float in every precision, such as those that overflow in half precision.",
)
