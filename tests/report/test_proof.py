"""A proof in the report: in every format, with texts that a library or a model may have chosen."""

import io

import msgspec
from rich.console import Console

from device_runner.spec import RunOptions
from pipeline.campaign.record import Host
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import FindingKind, LibraryProof, ProofFinding, ProofRow, ProvenLibrary
from pipeline.core.errors import Severity
from pipeline.report import formats, html, proofs
from pipeline.report.model import CampaignReport
from pipeline.report.show import show

HOSTILE = "<script>[red]|\x1b[2J"
KERNEL = ProofFinding(
    severity=Severity.ERROR, code=FindingKind.MISSING_KERNEL, what=f"no kernel {HOSTILE}", why="it said so",
    remedy="build it", config_line="ai.onnx;13;Erf",
)  # fmt: skip
FLAG = ProofFinding(
    severity=Severity.WARNING,
    code=FindingKind.FLAG_WITHOUT_EFFECT,
    what="CPU_ONLY has no effect",
    why="old",
    remedy="drop it",
)


def row(level: int, *findings: ProofFinding, provider: str = "nnapi", failed: bool = False) -> ProofRow:
    return ProofRow(
        targets=("phone",),
        model="m",
        variant="basic-fixed",
        file="models/m.ort",
        run=provider,
        options=RunOptions(provider=provider),
        api_level=level,
        failed=failed,
        checks=() if failed else (OutputCheck(output="y", passed=True, max_rel_error=1e-7),),
        partitions=None if failed or provider == "cpu" else (3, 2),
        findings=findings,
    )


PROOF = LibraryProof(
    bundle="0" * 64,
    library=ProvenLibrary(file="app.aar", release="1.29.0", commit="2e2543fbe9aa"),
    rows=(row(27, FLAG), row(31, FLAG), row(27, provider="cpu"), row(31, KERNEL, provider="xnnpack", failed=True)),
    left_out=("desk",),
)
NOT_RUN = LibraryProof(bundle="", library=ProvenLibrary(file="other.aar"), not_run="no C compiler")
REPORT = CampaignReport(
    name="demo", campaign="1", created_at="now", margin=0.05, host=Host(), versions={}, proofs=(PROOF, NOT_RUN)
)


def shown(width: int = 120) -> str:
    out = io.StringIO()
    show(formats.proof_parts(PROOF), Console(file=out, width=width))
    return out.getvalue()


def test_rows_that_differ_in_their_level_alone_are_one_line() -> None:
    lines = [line.split() for line in shown().splitlines()]
    assert any(line[:7] == ["m", "basic-fixed", "nnapi", "27,", "31", "x86_64", "passes:"] for line in lines)
    assert any(line[-3:] == ["5", "in", "2"] for line in lines)
    assert sum("nnapi" in line[:3] for line in lines) == 1


def test_what_fails_comes_first_with_line_and_remedy() -> None:
    text = " ".join(shown().split())
    assert "3 of 4 runs pass (API level 27, 31; x86_64)" in text
    assert "timings are not reported" in text
    assert text.index("no kernel") < text.index("CPU_ONLY has no effect")
    assert "operator config line: ai.onnx;13;Erf" in text
    assert "remedy: build it" in text
    assert "of another platform than this library, so not run: desk" in text


UNKNOWN = ProofFinding(
    severity=Severity.WARNING, code=FindingKind.NOT_COMPARED, what="nothing shows whether it is right", why="constant"
)


def test_what_nobody_could_judge_does_not_pass() -> None:
    rows = (row(27, provider="cpu"), row(31, UNKNOWN), row(33, UNKNOWN, FLAG))
    undecided = LibraryProof(bundle="0" * 64, library=ProvenLibrary(file="app.aar"), rows=rows)
    assert "1 of 3 runs pass, 2 could not be judged (" in proofs.summary(undecided)
    results = [cells[5] for cells in proofs.rows(undecided)]
    assert results == ["passes", "not judged: not compared", "not judged: not compared, flag without effect"]
    assert not undecided.failed


def test_what_fails_on_a_first_look_does_not_pass_either() -> None:
    refused = msgspec.structs.replace(KERNEL, severity=Severity.WARNING)
    proof = LibraryProof(bundle="0" * 64, library=ProvenLibrary(file="app.aar"), rows=(row(27, refused),))
    assert "0 of 1 runs pass (" in proofs.summary(proof)
    assert [cells[5] for cells in proofs.rows(proof)] == ["warns: missing kernel"]


def test_a_run_that_another_place_judged_is_decided() -> None:
    rows = (row(27, UNKNOWN), row(31), row(27, UNKNOWN, provider="cpu"))
    proof = LibraryProof(bundle="0" * 64, library=ProvenLibrary(file="app.aar"), rows=rows)
    assert proof.undecided("phone") == rows[2:]
    assert proof.undecided("desk") == ()


def test_nothing_acts_in_any_format() -> None:
    assert "\x1b" not in shown()
    assert "[red]" in shown()
    page, text = html.render(REPORT), formats.markdown_page(REPORT)
    assert HOSTILE[:13] not in page
    assert "<script>" not in text
    for report in (page, text):
        assert "ai.onnx;13;Erf" in report
        assert "not proven in other.aar: no C compiler" in report
        assert "ONNX Runtime 1.29.0, commit 2e2543fbe9" in report
