"""Documents of release 1.0 call parts of a problem otherwise: they are read, and written again under those names."""

import msgspec
import pytest

from device_runner.problem import Problem
from pipeline.campaign.record import FailureRow, Skipped
from pipeline.campaign.statistics.groups import Caution
from pipeline.check.library_proof import ProofFinding
from pipeline.core.errors import Finding
from pipeline.features.doctor.finding import DoctorFinding
from pipeline.partition.placement import ClaimReason
from pipeline.report.model import Withheld

CHECK = {"title": "Threads", "how": "each", "source": "performance", "outcome": "note"}
OF_1_0 = [
    (Finding, {"severity": "error", "what": "it is", "where": "m", "why": "so", "remedy": "this", "rule": "budget"}),
    (Skipped, {"severity": "error", "reason": "it is", "where": "m", "why": "so", "remedy": "this", "rule": "budget"}),
    (
        FailureRow,
        {"kind": "budget", "message": "it is", "cause": "so", "remedy": "this", "device": "local", "times": 2},
    ),
    (ProofFinding, {"kind": "crash", "severity": "error", "what": "it is", "why": "so", "remedy": "this"}),
    (Withheld, {"target": "phone", "model": "m", "reason": "it is"}),
    (Caution, {"doubt": "drift", "reason": "it is", "advice": "this"}),
    (ClaimReason, {"reason": "it is", "remedy": "this"}),
    (DoctorFinding, {"check": "budget", "text": "it is", "advice": "this", **CHECK}),
]


@pytest.mark.parametrize(("kind", "document"), OF_1_0, ids=[kind.__name__ for kind, _ in OF_1_0])
def test_a_document_of_1_0_is_read(kind: type[Problem], document: dict[str, object]) -> None:
    problem = msgspec.convert(document, kind)
    assert problem.what == "it is"
    assert problem.why == ("so" if {"why", "cause"} & set(document) else "")
    assert problem.remedy == ("this" if {"remedy", "advice"} & set(document) else "")
    codes = {"rule", "kind", "doubt", "check"} & set(document)
    assert problem.code == (document[codes.pop()] if codes else "")
    assert document.items() <= msgspec.to_builtins(problem).items()
