"""What a phone is asked about is what the genuine library gives NNAPI: each operation in each set of operand types."""

from pathlib import Path

import pytest

from device_runner.android_host.device import Phone, operand_type_codes
from device_runner.android_host.inspection import Call, Session, ask, questions, read_calls
from device_runner.library import LibraryFacts
from device_runner.spec import OptimizationLevel

pytestmark = pytest.mark.android_host
NAMES = {code: name for name, code in operand_type_codes().items()}


def given(calls: list[Call]) -> set[tuple[str, frozenset[str]]]:
    """Operations that NNAPI took, with the operand types that they had."""
    types: dict[int, list[str]] = {}
    found = set()
    for call in calls:
        if call["call"] == "Model_addOperand":
            types.setdefault(call["model"], []).append(NAMES[call["type"]])
        elif call["call"] == "Model_addOperation" and not call["result"]:
            operands = types[call["model"]]
            found.add((call["operation"], frozenset(operands[i] for i in (*call["inputs"], *call["outputs"]))))
        elif call["call"] == "Model_free":
            types.pop(call["model"], None)
    return found


@pytest.mark.parametrize(
    ("level", "every", "at_least"),
    [
        (28, 4, 30),
        (30, 4, 50),
        pytest.param(28, 1, 30, marks=pytest.mark.nightly),
        pytest.param(30, 1, 60, marks=pytest.mark.nightly),
    ],
)
def test_everything_that_the_library_gives_is_asked_about(
    library: LibraryFacts, op_models: Path, tmp_path: Path, level: int, every: int, at_least: int
) -> None:
    """By each so-many-th model of one operator, and at least so many operations with their types."""
    models = sorted(op_models.rglob("*.onnx"))[::every]
    record = tmp_path / "calls.jsonl"
    session = Session(level=OptimizationLevel.NONE, phone=Phone(api_level=level, calls=record))
    answers = list(ask(library, [(str(i), path, None) for i, path in enumerate(models)], session))
    assert len(answers) == len(models)
    found = given(read_calls(record))
    assert len(found) >= at_least
    assert found <= {(one.operation, one.types) for one in questions()}
