"""Texts of ONNX Runtime as findings: the missing config line, the refused format, the crash."""

from pathlib import Path

import pytest

from device_runner.failures import explain
from device_runner.result import Failure, FailureKind
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import FindingKind
from pipeline.features.prove.plan import MOST_SAID, explain_checks, explain_failure
from tests.ort_models import convert, parsed

REDUCED_1_21 = (
    "Non-zero status code returned while running Gather node. Name:'g0' "
    "Status Message: Gather Tind type not supported in this build."
)
"""As a minimal build of 1.21.0 with reduced types says it."""

CASES = {
    "operator left out": (
        FailureKind.MODEL_LOAD,
        "Could not find an implementation for Gather(13) node with name 'g0'",
        FindingKind.MISSING_KERNEL,
        "Gather since 13",
    ),
    "type left out": (FailureKind.RUN_ERROR, REDUCED_1_21, FindingKind.MISSING_KERNEL, "Gather since 13"),
    "operator unknown": (
        FailureKind.MODEL_LOAD,
        'This is an invalid model. In Node, ("e", Elu, "", 22) , Error No Op registered for Elu with domain_version',
        FindingKind.UNKNOWN_OPERATOR,
        "does not know an operator",
    ),
    "format": (
        FailureKind.MODEL_LOAD,
        "The ORT format model version [9] is not supported in this build 1.29.0.",
        FindingKind.REFUSED_FORMAT,
        "refuses the file's format",
    ),
    "cut off": (
        FailureKind.MODEL_LOAD,
        "ORT model verification failed.",
        FindingKind.REFUSED_FORMAT,
        "refuses the file's",
    ),
    "no provider": (
        FailureKind.PROVIDER_MISSING,
        "no NNAPI in this libonnxruntime",
        FindingKind.PROVIDER_MISSING,
        "lacks",
    ),
    "driver": (
        FailureKind.MODEL_LOAD,
        "ANEURALNETWORKS_OP_FAILED, on compilation",
        FindingKind.PROVIDER_REFUSED,
        "refused",
    ),
    "hang": (FailureKind.TIMEOUT, "the probe did not end by itself", FindingKind.HANG, "did not come back"),
    "anything": (FailureKind.RUN_ERROR, "bad shape", FindingKind.CANNOT_RUN, "could not load or run"),
}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = parsed("g (float[2, 2] x, int64[1] i) => (float[1, 2] y) { [g0] y = Gather (x, i) }")
    return convert(model, tmp_path_factory.mktemp("explain") / "gather.ort", level="none")


@pytest.mark.parametrize("name", CASES)
def test_what_the_library_says_becomes_a_finding(name: str, artifact: Path) -> None:
    failure, message, kind, told = CASES[name]
    found = explain_failure(explain(Failure(code=failure, what=message)), artifact, "nnapi", stock=False)
    assert found.code is kind
    assert told in found.what
    assert message in found.why
    assert found.remedy
    assert "{" not in found.remedy
    assert bool(found.config_line) == (kind is FindingKind.MISSING_KERNEL)


@pytest.mark.parametrize("name", ["operator left out", "type left out"])
def test_the_config_line_has_the_types_of_the_failing_node(name: str, artifact: Path) -> None:
    failure, message, _, _ = CASES[name]
    found = explain_failure(Failure(code=failure, what=message), artifact, "cpu", stock=False)
    assert found.config_line == 'ai.onnx;13;Gather{"inputs": {"0": ["float"], "1": ["int64_t"]}}'
    assert "operators/required_operators.config" in found.remedy


def test_no_config_mends_a_package_of_onnx_runtime_itself(artifact: Path) -> None:
    failure, message, _, _ = CASES["operator left out"]
    found = explain_failure(Failure(code=failure, what=message), artifact, "cpu", stock=True)
    assert "no config can bring it" in found.remedy


def test_a_file_that_cannot_be_read_costs_types_only(tmp_path: Path) -> None:
    (tmp_path / "x.ort").write_bytes(b"nothing")
    failure, message, _, _ = CASES["operator left out"]
    found = explain_failure(Failure(code=failure, what=message), tmp_path / "x.ort", "cpu", stock=False)
    assert found.config_line == "ai.onnx;13;Gather"


def test_a_crash_names_its_signal_and_long_words_are_cut(artifact: Path) -> None:
    failure = explain(Failure(code=FailureKind.CRASH, what="x\n" * 5000, signal="SIGSEGV"))
    found = explain_failure(failure, artifact, "xnnpack", stock=False)
    assert found.what == "the library crashed (SIGSEGV)"
    assert "xnnpack" in found.remedy
    assert len(found.why) < MOST_SAID + 200


def test_checks_that_pass_say_nothing_and_others_name_output_and_origin() -> None:
    good = OutputCheck(output="a", passed=True)
    bad = OutputCheck(output="b", passed=False, reason="relative error 0.5 is over 0.001")
    assert list(explain_checks([good], "cpu", "")) == []
    (found,) = explain_checks([good, bad], "nnapi", "")
    assert found.code is FindingKind.OUTPUTS_DIFFER
    assert found.what == "outputs are not those of the original model"
    assert found.why == "b: relative error 0.5 is over 0.001"
    assert "leave nnapi out" in found.remedy


def test_no_path_of_this_computer_gets_into_a_finding(artifact: Path) -> None:
    failure = Failure(code=FailureKind.MODEL_LOAD, what=f"Load model from {artifact} failed: bad")
    found = explain_failure(failure, artifact, "cpu", stock=False)
    assert found.why == "Load model from gather.ort failed: bad"
