"""A campaign with its artifact, and runs of it."""

from device_runner.result import Failure, FailureKind, Mark, RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.store import CampaignRecord, RunRecord
from pipeline.check.output import OutputCheck
from pipeline.core.variant import Artifact, Level, Variant

CAMPAIGN = CampaignRecord(id="c1", name="mnist", created_at="2026-01-01T00:00:00.000Z", document={"host": {"cores": 2}})
ARTIFACT = Artifact(
    model="mnist",
    variant=Variant(level=Level.BASIC),
    file="mnist.basic.ort",
    size_bytes=30_000,
    sha256="a" * 64,
    semantic_digest="b" * 64,
    operators={"ai.onnx:Conv": 2},
    source_operators={"ai.onnx:Conv": 2, "ai.onnx:Add": 3},
)


def run_record(
    spec: str = "s1", number: int = 0, latencies_ns: tuple[int, ...] = (5, 7, 6), failure: Failure | None = None
) -> RunRecord:
    result = RunResult(
        spec_id=spec,
        device="local",
        status=Status.OK if failure is None else Status.FAILED,
        failure=failure,
        latencies_ns=latencies_ns,
        marks=(Mark.THROTTLED,),
        started_at="2026-01-01T00:00:01.000Z",
    )
    return RunRecord(
        campaign="c1",
        round=number,
        model="mnist",
        variant="basic-fixed",
        spec=RunSpec(id=spec, model="mnist.basic.ort", options=RunOptions(intra_op_threads=2)),
        result=result,
        checks=(OutputCheck(output="logits", passed=True, max_abs_error=1e-6, cosine=1.0),),
        prediction={"latency_ns": 6},
    )


def failed(kind: FailureKind, spec: str = "s1") -> RunRecord:
    return run_record(spec, latencies_ns=(), failure=Failure(kind=kind, message="it broke"))
