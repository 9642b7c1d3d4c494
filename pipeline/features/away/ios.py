"""A package as an app for iPhones: the probe in a Swift package, an app that runs turns, and a test that starts it.

An app may start no process, so a test or a Mac starts it once for each turn. ONNX Runtime is linked (linked.py).
"""

from collections.abc import Iterator
from functools import partial
from importlib import resources
from pathlib import Path

from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.features.away import linked, xcode_project
from pipeline.features.away.plan import MadePackage
from pipeline.release import source_code

FOLDER, RUN = "ios", "run.sh"
STARTING_SECONDS = 60
"""What starting the app may take beside its turn."""

HOME_DIGITS = 12
"""Of a package's digest, what names the folder in the app's documents that has its session."""

SOURCES = f"{xcode_project.LIBRARY}/Sources"
TEMPLATES = {
    "Package.swift": f"{xcode_project.LIBRARY}/Package.swift",
    "PackageRunner.swift": f"{SOURCES}/PackageRunner/PackageRunner.swift",
    "Device.swift": f"{SOURCES}/PackageRunner/Device.swift",
    "Limits.swift": f"{SOURCES}/PackageRunner/Limits.swift",
    "turns.swift": f"{SOURCES}/turns/main.swift",
    "App.swift": "App.swift",
    "PackageTests.swift": "PackageTests.swift",
    RUN: RUN,
    "README.md": "README.md",
}
"""Templates, and where they stand in the folder."""

CARRIED = {"../turns": "text", "../package": "text", "../requests": "folder", "../files": "folder"}
"""What of a package goes into the app as it is, with the type that Xcode gives it."""

MODULE = 'module CProbe {\n    header "../turns.h"\n    export *\n}\n'


def write_ios(package: MadePackage) -> None:
    """Write the Xcode project, the Swift package and what says how they are built and run, into a package's folder."""
    runtime = package.runtime
    if runtime is None:
        raise ValueError("a package for iPhones has a runtime")
    turn_seconds = package.plan.wait_seconds + STARTING_SECONDS + max(turn.limit_seconds for turn in package.turns)
    values: dict[str, object] = {
        "turns": len(package.turns),
        "turn_seconds": turn_seconds,
        "all_seconds": turn_seconds * len(package.turns),
        "home": package.plan.digest[:HOME_DIGITS],
        "home_digits": HOME_DIGITS,
        "repository": ort_releases.SWIFT_REPOSITORY,
        "version": "" if runtime.build else runtime.version,
        "lowest": runtime.lowest,
        "wait_seconds": package.plan.wait_seconds,
        "thermal_status": package.conditions.max_thermal_status,
        "battery_percent": package.conditions.min_battery_percent,
        "charging": package.conditions.charging,
    }
    folder = package.folder / FOLDER
    texts = {path: str(render(template, **values)) for template, path in TEMPLATES.items()}
    texts |= xcode_project.project(("App.swift", "PackageTests.swift"), CARRIED, runtime.lowest)
    texts |= {f"{SOURCES}/CProbe/{name}": text for name, text in probe_sources()}
    texts[f"{SOURCES}/CProbe/include/module.modulemap"] = MODULE
    files: dict[str, str | Path | storage.VerifiedFile] = {**texts}
    files |= {f"{xcode_project.LIBRARY}/{linked.BUILD}/{name}": path for name, path in runtime.files.items()}
    storage.make_folder(folder)
    storage.write_files(folder, files)


def probe_sources() -> Iterator[tuple[str, str]]:
    """The probe's units by name."""
    for source in sorted(resources.files("device_runner.probe").iterdir(), key=lambda file: file.name):
        if source.name.endswith((".c", ".h")):
            yield source.name, source.read_text("utf-8")


render = partial(source_code.render_source, "pipeline.features.away")
