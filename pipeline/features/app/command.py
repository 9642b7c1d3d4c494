"""`ort-mobile app`: what is in an app or a library package, and what of it breaks on phones."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli import command as cli_command
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs
from pipeline.core import errors as core_errors
from pipeline.core import groups as counting
from pipeline.core.errors import ConfigError, Severity
from pipeline.features.app import RULE_NAMES

if TYPE_CHECKING:
    from pipeline.features.app.document import AppDocument, NativeLibrary
    from pipeline.report import wording


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile app app.apk",
        "ort-mobile app app.aar --fail-on error --fail-on finding:telemetry --sarif app.sarif",
    ),
)
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@cli_outputs.fail_on_option(rules=RULE_NAMES)
@cli_outputs.sarif_option
@cli_outputs.json_option
def app(path: Path, fail_on: tuple[cli_outputs.Condition, ...], outputs: Outputs) -> None:
    """Show what is in FILE, an APK, AAB, AAR, IPA, xcframework, wheel, ZIP or folder, and what of it breaks on phones.

    Every native library with its 16 KB alignment, every ONNX Runtime with release and providers, who gets which of them
    at load, and whether it loads the models inside. Nothing of the package is run or unpacked to a place that its names
    decide. Findings alone never change the exit code: --fail-on says which of them do.
    """
    if not path.exists():
        raise ConfigError("no such file or folder", where=str(path), remedy="name an app, a package or a folder")
    from pipeline.features.app.judge import inspect
    from pipeline.report import ci as report_ci

    document = inspect(path)
    rows = tuple((finding, str(path)) for finding in document.findings)
    code = cli_outputs.end(
        fail_on, [cli_outputs.Watched(str(path), findings=document.findings)], core_errors.ExitCode.DONE
    )
    outputs.finish(
        document, parts(document), code=code, ci=report_ci.CiDocument(name=f"ort-mobile app {path.name}", findings=rows)
    )


def parts(document: "AppDocument") -> "Iterator[wording.Part]":
    """The document for people."""
    from pipeline.report import wording

    errors = sum(finding.severity is Severity.ERROR for finding in document.findings)
    what = ", ".join(
        (
            document.kind or ("folder" if Path(document.path).is_dir() else "package"),
            wording.size(sum(part.packed_bytes for part in document.parts)),
            f"{len(document.libraries)} native librar{'y' if len(document.libraries) == 1 else 'ies'}",
            counting.counted(len(document.models), "model"),
            counting.counted(errors, "error"),
            counting.counted(len(document.findings) - errors, "warning"),
        )
    )
    yield wording.Line((document.path, "bold"), f": {what}")
    concerned = {path for finding in document.findings for path in finding.where.split(", ")}
    shown = [
        library
        for library in document.libraries
        if library.kind or library.uses or library.tries or library.entries or library.path in concerned
    ]
    yield wording.Listing(
        title="Native libraries",
        head=("Library", "ABI", "Size", "Pages", "What it is"),
        right=("Size",),
        rows=tuple(
            (
                library.path,
                library.abi,
                wording.size(library.size_bytes),
                f"{library.page_bytes // 1024} KB" if library.page_bytes else "-",
                _what(library, document),
            )
            for library in shown
        ),
    )
    if others := len(document.libraries) - len(shown):
        yield wording.Line(f"and {others} more without ONNX Runtime and without findings (--json has all)")
    rows = tuple(
        (model.path, model.format, str(model.opset), wording.size(model.size_bytes)) for model in document.models
    )
    yield wording.Listing(title="Models", head=("Model", "Format", "Opset", "Size"), right=("Opset", "Size"), rows=rows)
    yield wording.Listing(
        title="Size by part",
        head=("Part", "Files", "Packed", "Unpacked"),
        right=("Files", "Packed", "Unpacked"),
        rows=tuple(
            (part.part, str(part.files), wording.size(part.packed_bytes), wording.size(part.size_bytes))
            for part in document.parts
        ),
    )
    for title, severity in (("Errors", Severity.ERROR), ("Warnings", Severity.WARNING)):
        notes = wording.gathered(
            wording.ListingNote(
                title=finding.code,
                text="; ".join(filter(None, (finding.what, finding.why))),
                remedy=finding.remedy,
                places=(finding.where,),
            )
            for finding in document.findings
            if finding.severity is severity
        )
        if notes:
            yield wording.Section(title=title, notes=tuple(notes))


def _what(library: "NativeLibrary", document: "AppDocument") -> str:
    from device_runner import build as runner_build
    from pipeline.features.app.inspection import ENTRIES

    if library.kind:
        release = library.release or "of unknown release"
        telemetry = ", telemetry" if library.telemetry else ""
        api = f", API {library.offered}" if library.offered else ""
        inside = "" if library.exports else " inside"
        names = ", ".join(part.extension for part in library.arm_code.extensions) if library.arm_code else ""
        code = f"; code for {names}" if names else ""
        providers = ", ".join(library.providers)
        return f"ONNX Runtime {release}{inside}, {library.kind} build{api}: {providers}{telemetry}{code}"
    if library.tries:
        return f"tries models in a process of its own: {library.name[len(runner_build.TRIAL_PREFIX) : -3]}"
    versions = f"{library.least_api} to {library.api}" if library.least_api else f"{library.api}"
    asks = library.asks or (f"API {versions}" if library.api else "any release")
    gets = document.served.get(library.path)
    uses = f"uses ONNX Runtime ({asks}): gets {gets or 'none here'}" if library.uses else ""
    texts = [*(ENTRIES[name] for name in library.entries), uses, "telemetry" if library.telemetry else ""]
    return "; ".join(filter(None, texts)) or library.system
