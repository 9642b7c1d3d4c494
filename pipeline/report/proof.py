"""How a proof in the library that ships is worded: a line for each way to run, then every finding once."""

from collections.abc import Iterator, Sequence

from device_runner.providers import NNAPI
from pipeline.check.library_proof import LibraryProof, ProofFinding, ProofRow
from pipeline.core.errors import Severity
from pipeline.report import wording

HEAD = ("Model", "Variant", "Run", "API level", "Ran on", "Result", "Outputs", "NNAPI operations in partitions")
NO_PHONE = "It ran in a process of this computer, not on a phone: timings are not reported."
EMULATED = "It ran in an emulator, not on a phone: timings are not reported."


def title(proof: LibraryProof) -> str:
    """The library by its file, release and commit."""
    library = proof.library
    commit = f", commit {library.commit[:10]}" if library.commit else ""
    release = f" (ONNX Runtime {library.release}{commit})" if library.release else ""
    return f"Proof in the library that ships: {library.file}{release}"


def summary(proof: LibraryProof) -> str:
    """How many rows pass, or why nothing was run."""
    if proof.not_run:
        return f"not proven in {proof.library.file}: {proof.not_run}"
    passing = sum(not row.failed for row in proof.rows)
    levels = ", ".join(map(str, sorted({row.api_level for row in proof.rows if row.api_level})))
    places = "; ".join(filter(None, (levels and f"API level {levels}", _places(proof.rows))))
    where = EMULATED if any(row.cpu for row in proof.rows) else NO_PHONE
    return f"{passing} of {len(proof.rows)} runs pass ({places}). {where}"


def place(row: ProofRow) -> str:
    """The ABI of the library that ran, and the CPU that an emulator played."""
    return f"{row.abi} on {row.cpu}" if row.cpu else row.abi


def _places(found: Sequence[ProofRow]) -> str:
    cpus: dict[str, dict[str, None]] = {}
    for row in found:
        cpus.setdefault(row.abi, {}).update({row.cpu: None} if row.cpu else {})
    return ", ".join(f"{abi} on {' and '.join(names)}" if names else abi for abi, names in cpus.items())


def rows(proof: LibraryProof) -> Iterator[tuple[str, ...]]:
    """Cells under `HEAD`; rows that differ in API level and CPU alone are one."""
    groups: dict[tuple[str, ...], list[ProofRow]] = {}
    for row in proof.rows:
        groups.setdefault((*_cells(row), str(row.api_level)), []).append(row)
    joined: dict[tuple[str, ...], list[str]] = {}
    for (*cells, level), found in groups.items():
        joined.setdefault((*cells, _places(found)), []).append(level if found[0].api_level else wording.DASH)
    for (model, variant, run, *results, places), levels in joined.items():
        yield model, variant, run, ", ".join(levels), places, *results


def _cells(row: ProofRow) -> tuple[str, ...]:
    worst = max((check.max_rel_error or 0.0 for check in row.checks), default=None)
    run = f"{row.run} (chosen)" if row.chosen else row.run
    return row.model, row.variant, run, _result(row), wording.error_size(worst), _claims(row)


def _result(row: ProofRow) -> str:
    kinds = dict.fromkeys(finding.kind.replace("_", " ") for finding in row.findings)
    word = "FAILS" if row.failed else "passes"
    return f"{word}: {', '.join(kinds)}" if kinds else word


def _claims(row: ProofRow) -> str:
    if row.options.provider != NNAPI or (row.failed and not row.partitions):
        return wording.DASH
    sizes = row.partitions or ()
    return f"{sum(sizes)} in {len(sizes)}" if sizes else "none"


def findings(proof: LibraryProof) -> Iterator[tuple[str, str, str, str]]:
    """Title, text, remedy and place of each finding, those that fail first."""
    found = [(finding, row) for row in proof.rows for finding in row.findings]
    for severity in Severity:
        for finding, row in found:
            if finding.severity is severity:
                level = f"API level {row.api_level}" if row.api_level else ""
                parts = (row.model, row.variant, row.run, level, place(row))
                yield finding.what, _text(finding), finding.remedy, " / ".join(filter(None, parts))


def _text(finding: ProofFinding) -> str:
    line = f"operator config line: {finding.config_line}" if finding.config_line else ""
    return "; ".join(part for part in (finding.why, line) if part)


def remarks(proof: LibraryProof) -> Iterator[str]:
    """What to know beside the rows."""
    if proof.left_out:
        yield f"of another platform than this library, so not run: {', '.join(proof.left_out)}"
    yield from proof.notes
