"""One form of what does not work: what errors, failures, findings and refusals have in common."""

import msgspec
import pytest

from device_runner.errors import SpecError, UnavailableError
from device_runner.problem import Problem
from device_runner.result import Failure, FailureKind


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(what="no room"), "no room"),
        (Problem(what="no room", why="full", remedy="free some"), "no room; full; free some"),
        (
            Problem(what="the disk is full.\n", why="the disk is full", remedy="free some"),
            "the disk is full; free some",
        ),
    ],
)
def test_the_text_says_each_thing_once(problem: Problem, text: str) -> None:
    assert problem.text == text
    assert "" not in dict(problem.lines()).values()


def test_an_error_has_the_problem_of_another_at_its_own_place() -> None:
    failure = Failure(code=FailureKind.PROVIDER_MISSING, what="no such provider", why="not built in", remedy="build it")
    error = UnavailableError.of(failure, where="--ep")
    assert (error.what, error.where, error.why, error.remedy) == (
        "no such provider",
        "--ep",
        "not built in",
        "build it",
    )
    assert str(error) == "--ep: no such provider: not built in"
    assert SpecError.of(error.problem).problem == error.problem


def test_a_place_is_given_once() -> None:
    error = SpecError("no").at("model.onnx")
    assert error.at("other.onnx").where == "model.onnx"


def test_documents_keep_the_names_of_release_1_0() -> None:
    stored = {"kind": "crash", "message": "SIGSEGV", "cause": "a driver", "remedy": "another", "stage": "load"}
    failure = msgspec.convert(stored, Failure)
    assert (failure.code, failure.what, failure.why) == (FailureKind.CRASH, "SIGSEGV", "a driver")
    assert msgspec.to_builtins(failure).items() >= stored.items()
