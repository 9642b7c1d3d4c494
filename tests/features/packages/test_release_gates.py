"""Gates decide by the rule of a finding, never by its words."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config import Gate, Platform, Target
from pipeline.core.errors import BUDGET, Finding, Severity
from pipeline.features.packages.release import early_findings, over_budget


@pytest.mark.parametrize(("rule", "refused"), [(BUDGET, 1), ("", 0)])
def test_a_target_named_like_the_budget_is_none(rule: str, refused: int) -> None:
    finding = Finding(severity=Severity.WARNING, what="x", where="target max_library_bytes: m", rule=rule)
    assert len(list(over_budget((finding,)))) == refused


@pytest.mark.parametrize(
    ("own", "given", "remedy"),
    [
        (None, None, 'name it, as in library = "android:1.29.0"'),
        ("android:1.29.0", None, "`ort-mobile library get android:1.29.0`"),
        (None, "android:1.29.0", "`ort-mobile library get android:1.29.0`"),
    ],
)
def test_a_library_that_is_not_here_is_known_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, given: str | None, remedy: str
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "ORT_MOBILE_CACHE", "GRADLE_USER_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    targets = (Target(name="a", platform=Platform.ANDROID, library=own), Target(name="i", platform=Platform.IOS))
    config = SimpleNamespace(targets=targets, release=SimpleNamespace(gates=(Gate.PROOF,)))
    (found,) = early_findings(cast("Any", config), given)
    assert found.what == "the bundle cannot be shown to run in the library of a"
    assert found.remedy.startswith(remedy)
