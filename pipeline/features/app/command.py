"""`ort-mobile app`: what is in an app or a library package, and what of it breaks on phones."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.outputs import Condition, Outputs, Watched, end, fail_on_option, json_option, sarif_option
from pipeline.core.errors import ConfigError, ExitCode, Severity
from pipeline.core.groups import counted
from pipeline.features.app import RULE_NAMES

if TYPE_CHECKING:
    from pipeline.features.app.document import AppDocument, NativeLibrary
    from pipeline.report.wording import Part


@click.command(cls=Command)
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@fail_on_option(rules=RULE_NAMES)
@sarif_option
@json_option
def app(path: Path, fail_on: tuple[Condition, ...], outputs: Outputs) -> None:
    """Show what is in FILE, an APK, AAB, AAR, IPA, xcframework, wheel, ZIP or folder, and what of it breaks on phones.

    Every native library with its 16 KB alignment, every ONNX Runtime with release and providers, who gets which of them
    at load, and whether it loads the models inside. Nothing of the package is run or unpacked to a place that its names
    decide. Findings alone never change the exit code: --fail-on says which of them do.
    """
    if not path.exists():
        raise ConfigError("no such file or folder", where=str(path), remedy="name an app, a package or a folder")
    from pipeline.features.app.judge import inspect
    from pipeline.report.ci import CiDocument

    document = inspect(path)
    rows = tuple((row, str(path)) for row in document.findings)
    code = end(fail_on, [Watched(str(path), findings=document.findings)], ExitCode.DONE)
    outputs.finish(
        document, parts(document), code=code, ci=CiDocument(name=f"ort-mobile app {path.name}", findings=rows)
    )


def parts(document: "AppDocument") -> "Iterator[Part]":
    """The document for people."""
    from pipeline.report.wording import Line, Listing, ListingNote, Section, gathered, size

    errors = sum(row.severity is Severity.ERROR for row in document.findings)
    what = ", ".join((
        document.kind or ("folder" if Path(document.path).is_dir() else "package"),
        size(sum(part.packed_bytes for part in document.parts)),
        f"{len(document.libraries)} native librar{'y' if len(document.libraries) == 1 else 'ies'}",
        counted(len(document.models), "model"), counted(errors, "error"),
        counted(len(document.findings) - errors, "warning"),
    ))  # fmt: skip
    yield Line((document.path, "bold"), f": {what}")
    concerned = {place for row in document.findings for place in row.where.split(", ")}
    shown = [row for row in document.libraries if row.kind or row.uses or row.entries or row.path in concerned]
    yield Listing(
        title="Native libraries", head=("Library", "ABI", "Size", "Pages", "What it is"), right=("Size",),
        rows=tuple(
            (row.path, row.abi, size(row.size_bytes), f"{row.page_bytes // 1024} KB" if row.page_bytes else "-",
             _what(row, document))
            for row in shown
        ),
    )  # fmt: skip
    if others := len(document.libraries) - len(shown):
        yield Line(f"and {others} more without ONNX Runtime and without findings (--json has all)")
    rows = tuple((row.path, row.format, str(row.opset), size(row.size_bytes)) for row in document.models)
    yield Listing(title="Models", head=("Model", "Format", "Opset", "Size"), right=("Opset", "Size"), rows=rows)
    yield Listing(
        title="Size by part", head=("Part", "Files", "Packed", "Unpacked"), right=("Files", "Packed", "Unpacked"),
        rows=tuple((row.part, str(row.files), size(row.packed_bytes), size(row.size_bytes)) for row in document.parts),
    )  # fmt: skip
    for title, severity in (("Errors", Severity.ERROR), ("Warnings", Severity.WARNING)):
        notes = gathered(
            ListingNote(title=row.rule, text="; ".join(filter(None, (row.what, row.why))), remedy=row.remedy,
                        places=(row.where,))
            for row in document.findings if row.severity is severity
        )  # fmt: skip
        if notes:
            yield Section(title=title, notes=tuple(notes))


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
