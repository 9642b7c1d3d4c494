"""Rules name the section that they come from, and the section is in docs/facts."""

import re
from pathlib import Path

from tests.ground_truth import ORACLE

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "docs" / "facts"
CITED = re.compile(r"ep_rules(?:\.md)? ([A-J])(?:\.(\d+))?")


def cited_sections() -> dict[str, list[str]]:
    """Section of ep_rules.md to the files of ours that name it."""
    sections: dict[str, list[str]] = {}
    for package in ("pipeline", "device_runner", "tests", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            for letter, number in CITED.findall(path.read_text(encoding="utf-8")):
                section = f"{letter}.{number}" if number else letter
                sections.setdefault(section, []).append(str(path.relative_to(ROOT)))
    return sections


def test_every_cited_section_exists() -> None:
    headings = re.findall(
        r"^#+ ([A-J](?:\.\d+)?)[. ]", (FACTS / "ep_rules.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    cited = cited_sections()
    assert len(cited) > 20
    assert {section: files for section, files in cited.items() if section not in headings} == {}


def test_every_cited_section_on_quantization_exists() -> None:
    headings = re.findall(r"^## (Q\.\d+) ", (FACTS / "quantization.md").read_text(encoding="utf-8"), re.MULTILINE)
    files = [p for package in ("pipeline", "tests") for p in (ROOT / package).rglob("*.py")]
    cited = {
        found for path in files for found in re.findall(r"quantization (Q\.\d+)", path.read_text(encoding="utf-8"))
    }
    assert len(cited) >= 4
    assert cited - set(headings) == set()


def test_every_document_is_listed() -> None:
    listed = (FACTS / "README.md").read_text(encoding="utf-8")
    assert [
        path.name for path in FACTS.glob("*.md") if path.name != "README.md" and f"]({path.name})" not in listed
    ] == []


def test_the_ground_truth_is_small() -> None:
    assert sum(path.stat().st_size for path in ORACLE.iterdir() if path.is_file()) < 8 << 20
