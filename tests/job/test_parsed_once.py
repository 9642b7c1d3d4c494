"""A job reads the graph of each artifact once in its own process, however many steps ask for it."""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.config import read_config
from pipeline.core.errors import ExitCode, ModelError
from pipeline.core.progress import progress_for
from pipeline.job.run import JobOptions, run_job
from pipeline.model.ort_format import OrtModel, parse_each_once, parse_ort, read_artifact
from tests.configs import MNIST, PHONE

CONFIG = f"""
name = "digits"
{MNIST}{PHONE}
min_api_level = 29
[variants]
levels = ["basic", "all"]
styles = ["fixed"]
"""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was parsed, by its name."""
    found: Counter[str] = Counter()

    def counted(data: bytes, source: str) -> OrtModel:
        found[source] += 1
        return parse_ort(data, source)

    monkeypatch.setattr("pipeline.model.ort_format.parse_ort", counted)
    return found


def test_each_artifact_is_parsed_once_a_job(tmp_path: Path, parsed: Counter[str]) -> None:
    (tmp_path / "digits.toml").write_text(CONFIG)
    options = JobOptions(output=tmp_path / "out", convert_only=True)
    result = run_job(read_config(tmp_path / "digits.toml"), options, progress_for(quiet=True))
    assert result.exit_code is ExitCode.DONE
    artifacts = {name: count for name, count in parsed.items() if "/artifacts/" in name}
    assert len(artifacts) == 2
    assert set(artifacts.values()) == {1}


def test_a_file_that_is_replaced_is_parsed_again(tmp_path: Path, parsed: Counter[str]) -> None:
    file = tmp_path / "a.ort"
    with parse_each_once():
        for content in (b"not a model", b"nor is this"):
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(file)
            with pytest.raises(ModelError):
                read_artifact(file)
    assert parsed[str(file)] == 2
