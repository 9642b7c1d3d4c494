"""docs/guides.toml: each row has a command that exists with a test that exists, or the reason why there is none."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_help import parse
from tests.command import ROOT

ROWS: list[dict[str, str]] = tomllib.loads((ROOT / "docs/guides.toml").read_text("utf-8"))["rows"]
REASONS = ("not for phones, because ", "not yet: ")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["told"][:40])
def test_a_row_has_a_command_with_its_test_or_a_reason(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "why" in row:
        assert set(row) == {"guide", "told", "why"}
        assert row["why"].startswith(REASONS)
        return
    assert set(row) == {"guide", "told", "command", "test"}
    monkeypatch.chdir(tmp_path)
    Path("PROGRAM").touch()  # a program of the user's, which its option looks for
    program, *words = shlex.split(row["command"])
    assert program == "ort-mobile"
    parse(words)
    path, _, function = row["test"].partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), row["test"]


def test_nothing_is_told_twice() -> None:
    told = [(row["guide"], row["told"]) for row in ROWS]
    assert len(set(told)) == len(told)
