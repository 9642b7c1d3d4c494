"""What a module imports, read from its source: statements, names in tables, packages around it, and nothing else."""

from pathlib import Path

import pytest

from pipeline.core import own_sources
from pipeline.core.own_sources import ROOT, imported_sources, sources_digest

SOURCES = {
    "pipeline/__init__.py": "import device_runner  # before all else\n",
    "pipeline/start.py": "from pipeline.near import (\n  far,\n  name,\n)\n\ndef late():\n  import pipeline.lazy\n",
    "pipeline/near/__init__.py": 'TABLE = {"row": "pipeline.table:function"}\n',
    "pipeline/near/far.py": "from pipeline import start\n",
    "pipeline/near/beside.py": "",
    "pipeline/lazy.py": "from os import path\n",
    "pipeline/table.py": "",
    "pipeline/apart.py": "import pipeline.start\n",
    "device_runner/__init__.py": "",
    "device_runner/session/code.c": "int x;",
}
APART = {"pipeline/near/beside.py", "pipeline/apart.py", "device_runner/session/code.c"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(own_sources, "ROOT", tmp_path)
    return tmp_path


def test_what_a_module_imports(project: Path) -> None:
    names = {path.relative_to(project).as_posix() for path in imported_sources("pipeline.start")}
    assert names == set(SOURCES) - APART


@pytest.mark.parametrize("name", SOURCES)
def test_an_edit_of_what_is_imported_changes_the_digest(project: Path, name: str) -> None:
    before = sources_digest.__wrapped__("pipeline.start", ("device_runner/**/*.c",))
    (project / name).write_text(SOURCES[name] + "\n")
    after = sources_digest.__wrapped__("pipeline.start", ("device_runner/**/*.c",))
    assert (before != after) == (name not in APART or name.endswith(".c"))


@pytest.mark.parametrize("module", ["pipeline.convert.engine", "pipeline.passes.run"])
def test_no_cache_follows_what_only_commands_and_reports_import(module: str) -> None:
    packages = {path.relative_to(ROOT).parts[1] for path in imported_sources(module)}
    assert not packages & {"accuracy", "advice", "campaign", "cli", "job", "ort_build", "release", "report"}
    assert {"core", "model", "partition"} <= packages
