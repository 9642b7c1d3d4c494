"""What came of a bundle in the library that ships."""

from collections.abc import Iterator, Sequence

from device_runner import providers as runner_providers
from pipeline.campaign import record as campaign_record
from pipeline.check import library_proof
from pipeline.core.errors import Severity
from pipeline.report import wording
from pipeline.report.wording import Listing, ListingNote, gathered

PROOF_HEAD = ("Model", "Variant", "Run", "API level", "Ran on", "Result", "Outputs", "NNAPI operations in partitions")

NO_PHONE = "It ran in a process of this computer, not on a phone: timings are not reported."

EMULATED = "It ran in an emulator, not on a phone: timings are not reported."


def title(proof: library_proof.LibraryProof) -> str:
    """The library by its file, release and commit."""
    library = proof.library
    commit = f", commit {library.commit[:10]}" if library.commit else ""
    release = f" (ONNX Runtime {library.release}{commit})" if library.release else ""
    return f"Proof in the library that ships: {library.file}{release}"


def summary(proof: library_proof.LibraryProof) -> str:
    """How many rows pass or could not be judged, or why nothing was run."""
    if proof.not_run:
        return f"not proven in {proof.library.file}: {proof.not_run_text}"
    passing, undecided = sum(row.passed for row in proof.rows), sum(row.undecided for row in proof.rows)
    unknown = f", {undecided} could not be judged" if undecided else ""
    levels = ", ".join(map(str, sorted({row.api_level for row in proof.rows if row.api_level})))
    places = "; ".join(filter(None, (levels and f"API level {levels}", _places(proof.rows))))
    where = EMULATED if any(row.cpu for row in proof.rows) else NO_PHONE
    return f"{passing} of {len(proof.rows)} runs pass{unknown} ({places}). {where}"


def _places(rows: Sequence[library_proof.ProofRow]) -> str:
    cpus: dict[str, dict[str, None]] = {}
    for row in rows:
        cpus.setdefault(row.abi, {}).update({row.cpu: None} if row.cpu else {})
    return ", ".join(f"{abi} on {' and '.join(names)}" if names else abi for abi, names in cpus.items())


def rows(proof: library_proof.LibraryProof) -> Iterator[tuple[str, ...]]:
    """Cells under `PROOF_HEAD`; rows that differ in API level and CPU alone are one."""
    groups: dict[tuple[str, ...], list[library_proof.ProofRow]] = {}
    for row in proof.rows:
        # The result, the worst error, and what NNAPI took
        kinds = ", ".join(dict.fromkeys(finding.code.replace("_", " ") for finding in row.findings))
        word = "FAILS" if row.failed else "warns" if row.broken else "not judged" if row.undecided else "passes"
        worst = max((check.max_rel_error for check in row.checks if check.max_rel_error is not None), default=None)
        sizes, claims = row.partitions or (), wording.DASH
        if runner_providers.provider_named(row.options.provider).nnapi and not (row.failed and not sizes):
            claims = f"{sum(sizes)} in {len(sizes)}" if sizes else "none"
        ran, result = f"{row.run} (chosen)" if row.chosen else row.run, f"{word}: {kinds}" if kinds else word
        key = (row.model, row.variant, ran, result, wording.error_size(worst), claims, str(row.api_level))
        groups.setdefault(key, []).append(row)
    joined: dict[tuple[str, ...], list[str]] = {}
    for (*cells, level), alike_rows in groups.items():
        chips = [
            f", simulated {chip} (QAIRT {qairt})"
            for chip, qairt in dict.fromkeys((row.chip, row.qairt) for row in alike_rows)
            if chip
        ]
        ran_on = _places(alike_rows) + "".join(chips)
        joined.setdefault((*cells, ran_on), []).append(level if alike_rows[0].api_level else wording.DASH)
    for (model, variant, run, *results, places), levels in joined.items():
        yield model, variant, run, ", ".join(levels), places, *results


def findings(proof: library_proof.LibraryProof) -> list[tuple[library_proof.ProofRow, library_proof.ProofFinding]]:
    """Every finding with its row, those that fail first."""
    pairs = ((row, finding) for row in proof.rows for finding in row.findings)
    return sorted(pairs, key=lambda pair: list(Severity).index(pair[1].severity))


def where(row: library_proof.ProofRow) -> str:
    """Where a row ran: with the ABI of the library, and the CPU that an emulator played."""
    level = f"API level {row.api_level}" if row.api_level else ""
    return campaign_record.place(
        row.model, row.variant, row.run, level, f"{row.abi} on {row.cpu}" if row.cpu else row.abi
    )


def reason(finding: library_proof.ProofFinding) -> str:
    """The reason of a finding, with the line that an operator config lacks."""
    line = f"operator config line: {finding.config_line}" if finding.config_line else ""
    return "; ".join(part for part in (finding.why, line) if part)


def proof_listing(proof: library_proof.LibraryProof) -> Listing:
    """What came of each way to run in a library that ships; without rows where nothing was run."""
    return Listing(title=title(proof), head=PROOF_HEAD, rows=tuple(rows(proof)))


def proof_notes(proof: library_proof.LibraryProof) -> list[ListingNote]:
    """What to know of a library that ships: how much holds, or why nothing was run; then every finding once."""
    by_finding = gathered(
        ListingNote(title=finding.what, text=reason(finding), remedy=finding.remedy, places=(where(run),))
        for run, finding in findings(proof)
    )
    other = f"of another platform than this library, so not run: {', '.join(proof.left_out)}"
    remarks = [*([other] if proof.left_out else []), *proof.notes]
    return [
        ListingNote(title="", text=summary(proof)),
        *by_finding,
        *(ListingNote(title="", text=text) for text in remarks),
    ]
