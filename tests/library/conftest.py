"""Caches of each test's own, where no client of a registry is found and nobody answers."""

from pathlib import Path

import pytest


@pytest.fixture
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache of this machine's user is read or written, and no network."""
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GRADLE_USER_HOME", str(tmp_path / "gradle"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ORT_MOBILE_MAVEN", "http://127.0.0.1:9")
    return tmp_path
