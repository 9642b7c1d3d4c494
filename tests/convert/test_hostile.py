"""Files made to do harm: a clear answer or error for each, no crash of the pipeline, no hang."""

import json
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest

from pipeline.convert import ConvertRequest, ConvertResult, convert_model
from pipeline.core.errors import PipelineError
from pipeline.core.variant import Level, Style, Variant
from pipeline.core.workers import Task, TaskOutcome, run_tasks
from pipeline.model.sources import SourceModel

VARIANTS = (Variant(level=Level.NONE), Variant(level=Level.ALL), Variant(level=Level.EXTENDED, style=Style.RUNTIME))
# What the oracle's release refused and newer ones read: IR 13, from 1.24 on.
READ_BY_NEWER = {"hdr_ir_13.onnx"}


@pytest.fixture(scope="module")
def outcomes(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TaskOutcome[ConvertResult]]:
    """What became of each file."""
    folder = tmp_path_factory.mktemp("hostile")
    with zipfile.ZipFile(oracle / "hostile.zip") as archive:
        archive.extractall(folder / "in")
    tasks = []
    for number, name in enumerate(sorted(json.loads((folder / "in" / "index.json").read_bytes()))):
        request = ConvertRequest(
            source=SourceModel(path=str(folder / "in" / name)), variants=VARIANTS, stem=f"m{number}",
            output_folder=str(folder / "out"), work_folder=str(folder / "work" / str(number)),
        )  # fmt: skip
        tasks.append(Task(label=name, call=partial(convert_model, request)))
    done = run_tasks(tasks, processes=2, timeout_seconds=60)
    return {outcome.task.label: outcome for outcome in done}


def errors(outcome: TaskOutcome[ConvertResult]) -> list[msgspec.Struct | PipelineError]:
    return [outcome.error] if outcome.error else list(outcome.value.failures) if outcome.value else []


def test_every_file_gets_the_answer_or_error_that_it_should(
    outcomes: dict[str, TaskOutcome[ConvertResult]], oracle: Path
) -> None:
    with zipfile.ZipFile(oracle / "hostile.zip") as archive:
        index = json.loads(archive.read("index.json"))
    assert outcomes.keys() == index.keys()
    wrong = {}
    for name, outcome in outcomes.items():
        failed = len(errors(outcome))
        got = "answer" if not failed else "error" if outcome.error or failed == len(VARIANTS) else "part"
        if index[name]["expect"] not in {got, "either"} and name not in READ_BY_NEWER:
            wrong[name] = got
    assert wrong == {}


def test_every_error_says_where_why_and_what_to_do(
    outcomes: dict[str, TaskOutcome[ConvertResult]],
) -> None:
    for name, outcome in outcomes.items():
        for error in errors(outcome):
            parts = {part: getattr(error, part) for part in ("what", "where", "why", "remedy")}
            assert parts["what"], name
            assert parts["where"], name
            assert parts["remedy"], name
            assert "internal error" not in parts["what"], (name, parts)
            assert all(len(text) < 2000 and "Traceback" not in text for text in parts.values()), name


def test_hardly_any_file_costs_a_worker(outcomes: dict[str, TaskOutcome[ConvertResult]]) -> None:
    ends = Counter(o.error.what for o in outcomes.values() if o.error)
    assert ends["ONNX Runtime crashed on it"] <= 10
    assert ends["no answer in time"] == 0


def test_nothing_is_left_of_files_that_failed(outcomes: dict[str, TaskOutcome[ConvertResult]]) -> None:
    folder = Path(next(iter(outcomes.values())).task.call.args[0].output_folder)
    made = {a.file for o in outcomes.values() if o.value for a in o.value.artifacts}
    assert {p.name for p in folder.iterdir()} == made
    assert not list(folder.parent.rglob("PWNED*"))
