"""Records of tests that passed: what decides them is there, and can be digested."""

from pathlib import Path

import pytest

import noxfile


@pytest.mark.parametrize("mark", noxfile.DECIDED_BY)
def test_every_pattern_names_files(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(noxfile.__file__).parent)
    without = [
        pattern for pattern in noxfile.DECIDED_BY[mark] if not any(path.is_file() for path in Path().glob(pattern))
    ]
    assert without == []
    assert len(noxfile.digest_of(mark)) == 64
