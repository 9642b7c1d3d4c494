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


@click.command(cls=cli_command.Command)
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
    rows = tuple((row, str(path)) for row in document.findings)
    code = cli_outputs.end(
        fail_on, [cli_outputs.Watched(str(path), findings=document.findings)], core_errors.ExitCode.DONE
    )
    outputs.finish(
        document, parts(document), code=code, ci=report_ci.CiDocument(name=f"ort-mobile app {path.name}", findings=rows)
    )


def parts(document: "AppDocument") -> "Iterator[wording.Part]":
    """The document for people."""
    from pipeline.report import wording

    errors = sum(row.severity is Severity.ERROR for row in document.findings)
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
    concerned = {place for row in document.findings for place in row.where.split(", ")}
    shown = [row for row in document.libraries if row.kind or row.uses or row.entries or row.path in concerned]
    yield wording.Listing(
        title="Native libraries",
        head=("Library", "ABI", "Size", "Pages", "What it is"),
        right=("Size",),
        rows=tuple(
            (
                row.path,
                row.abi,
                wording.size(row.size_bytes),
                f"{row.page_bytes // 1024} KB" if row.page_bytes else "-",
                _what(row, document),
            )
            for row in shown
        ),
    )
    if others := len(document.libraries) - len(shown):
        yield wording.Line(f"and {others} more without ONNX Runtime and without findings (--json has all)")
    rows = tuple((row.path, row.format, str(row.opset), wording.size(row.size_bytes)) for row in document.models)
    yield wording.Listing(title="Models", head=("Model", "Format", "Opset", "Size"), right=("Opset", "Size"), rows=rows)
    yield wording.Listing(
        title="Size by part",
        head=("Part", "Files", "Packed", "Unpacked"),
        right=("Files", "Packed", "Unpacked"),
        rows=tuple(
            (row.part, str(row.files), wording.size(row.packed_bytes), wording.size(row.size_bytes))
            for row in document.parts
        ),
    )
    for title, severity in (("Errors", Severity.ERROR), ("Warnings", Severity.WARNING)):
        notes = wording.gathered(
            wording.ListingNote(
                title=row.code,
                text="; ".join(filter(None, (row.what, row.why))),
                remedy=row.remedy,
                places=(row.where,),
            )
            for row in document.findings
            if row.severity is severity
        )
        if notes:
            yield wording.Section(title=title, notes=tuple(notes))


def _what(row: "NativeLibrary", document: "AppDocument") -> str:
    from pipeline.features.app.inspection import ENTRIES

    if row.kind:
        release = row.release or "of unknown release"
        telemetry = ", telemetry" if row.telemetry else ""
        api = f", API {row.offered}" if row.offered else ""
        inside = "" if row.exports else " inside"
        names = ", ".join(part.extension for part in row.arm_code.extensions) if row.arm_code else ""
        code = f"; code for {names}" if names else ""
        return f"ONNX Runtime {release}{inside}, {row.kind} build{api}: {', '.join(row.providers)}{telemetry}{code}"
    versions = f"{row.least_api} to {row.api}" if row.least_api else f"{row.api}"
    asks = row.asks or (f"API {versions}" if row.api else "any release")
    gets = document.served.get(row.path)
    uses = f"uses ONNX Runtime ({asks}): gets {gets or 'none here'}" if row.uses else ""
    texts = [*(ENTRIES[name] for name in row.entries), uses, "telemetry" if row.telemetry else ""]
    return "; ".join(filter(None, texts)) or row.system
