"""Every command of docs/for-agents.md, as it stands there."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.command import ROOT, ort_mobile
from tests.library.library_files import library, official_aar, texts

pytestmark = pytest.mark.long


def lines() -> list[str]:
    page = (ROOT / "docs" / "for-agents.md").read_text("utf-8")
    table = page.partition("## What to run")[2].partition("\n## ")[0]
    return [
        row.rpartition("| `ort-mobile ")[2].removesuffix("` |") for row in table.splitlines() if "`ort-mobile" in row
    ]


def test_commands_for_agents_do_what_they_say(tmp_path: Path) -> None:
    shutil.copy(ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx", tmp_path / "my.onnx")
    official_aar(tmp_path / "app.aar")
    for name, release in (("old", "1.28.0"), ("new", "1.29.0")):
        (tmp_path / f"{name}.so").write_bytes(library("arm64-v8a", extra=texts(release, "nnapi")))
    assert len(lines()) > 12
    for line in lines():
        done = ort_mobile(*shlex.split(line), cwd=tmp_path)
        if line.endswith("--json -"):
            assert json.loads(done.out)["version"] >= 1, line


def test_schemas_and_the_index_are_named_and_there() -> None:
    page, index = ((ROOT / name).read_text("utf-8") for name in ("docs/for-agents.md", "llms.txt"))
    schemas = {path.name for path in (ROOT / "docs").glob("*.schema.json")}
    assert {name for name in schemas if f"({name})" not in page} <= {"tune.schema.json"}
    assert "(docs/for-agents.md)" in index
