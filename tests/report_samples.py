"""Sample reports: made as the pipeline makes one: from stored runs with raw latencies, one of each kind of outcome."""

from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import Conditions, Failure, FailureKind, Mark, RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.record import Host, ModelFacts, RecordedRun, RunRecord, Skipped
from pipeline.check.compare import OutputCheck
from pipeline.core.errors import warning
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.report.model import CampaignReport, ChoiceRow, MeasuredRun, ends_of, make_rows

GOOD = OutputCheck(
    output="logits", passed=True, max_abs_error=1.1e-5, max_rel_error=4.2e-7, cosine=1.0, top1_agreement=1.0
)
BAD = OutputCheck(
    output="logits", passed=False, max_abs_error=3.5, max_rel_error=0.24, cosine=0.91, top1_agreement=0.84,
    reason="max rel 2.4e-01 is over 1.0e-03",
)  # fmt: skip
REFUSED = Failure(
    code=FailureKind.PROVIDER_REFUSED,
    what="Status Message: The model cannot run using the current set of target devices",
    why="the NNAPI driver refuses an operation that ONNX Runtime gave it",
    remedy="measure this model with USE_NCHW, or on the CPU",
    ort_code=11,
)


def record(
    number: int,
    latencies_ns: tuple[int, ...],
    failure: Failure | None = None,
    *,
    skipped: bool = False,
    check: OutputCheck = GOOD,
    marks: tuple[Mark, ...] = (),
) -> RunRecord:
    """One run."""
    status = Status.SKIPPED if skipped else Status.OK if failure is None else Status.FAILED
    return RunRecord(
        campaign="c",
        planned="m/v",
        round=number,
        model="m",
        variant="v",
        spec=RunSpec(id=f"s{number}", model="m.ort", options=RunOptions()),
        result=RunResult(
            spec_id=f"s{number}",
            device="d",
            status=status,
            failure=failure,
            latencies_ns=latencies_ns,
            load_ns=3_000_000 + number,
            first_run_ns=900_000,
            memory_peak_bytes=41_000_000,
            marks=marks,
        ),
        checks=(check,) if status is Status.OK else (),
    )


def runs(
    factor: float,
    seed: int,
    rounds: int = 7,
    samples: int = 100,
    check: OutputCheck = GOOD,
    noise: float = 0.012,
) -> tuple[RunRecord, ...]:
    """Rounds around 2 ms times `factor`, on a device that slows down a little."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(rounds):
        own = 1 + random.normal(0, noise)
        times = 2e6 * factor * own * (1 + 0.004 * number) * (1 + random.gamma(1.2, 0.02, samples))
        made.append(record(number, tuple(int(t) for t in times), check=check))
    return tuple(made)


def lane(
    *records: RunRecord, device: str = "d", model: str = "m", variant: str = "v", run: str = "cpu",
    baseline: bool = False, same_as: str = "",
) -> MeasuredRun:  # fmt: skip
    """A planned run with its runs; `same_as` is VARIANT/RUN of the one that ran in its place."""
    planned = RecordedRun(
        id=f"{device}/{model}/{variant}/{run}", device=device, model=model, variant=variant, run=run,
        options=RunOptions(), baseline=baseline, same_as=same_as and f"{device}/{model}/{same_as}",
    )  # fmt: skip
    return planned, records


def measured(model: str, device: str) -> list[MeasuredRun]:
    """Everything that can come of a run: faster, slower, the same, not sure, wrong, refused, skipped, half failed."""
    half = (*runs(1.4, 5, rounds=5), record(5, (), Failure(code=FailureKind.TIMEOUT, what="killed after 300 s")))
    lanes = [
        ("none-fixed", "cpu", runs(1.0, 1)),
        ("extended-fixed", "cpu", runs(0.62, 2)),
        ("basic-fixed", "cpu", runs(1.004, 3)),
        ("basic-runtime", "cpu", runs(1.045, 4, noise=0.06)),
        ("all-fixed", "cpu+threads=2", half),
        ("extended-fixed-nnapi", "nnapi+USE_FP16", runs(0.33, 6, check=BAD)),
        ("basic-fixed", "nnapi", tuple(record(n, (), REFUSED) for n in range(3))),
        ("basic-fixed", "xnnpack", (record(0, (), Failure(code=FailureKind.PROVIDER_MISSING, what="no XNNPACK"),
                                           skipped=True),)),
    ]  # fmt: skip
    return [
        lane(*made, device=device, model=model, variant=variant, run=run, baseline=n == 0)
        for n, (variant, run, made) in enumerate(lanes)
    ]


def with_times(rows: list[MeasuredRun], before: Conditions) -> list[MeasuredRun]:
    """The runs of rows one after another, two seconds each, driven by lab-7, with what the device said before each."""
    made: list[MeasuredRun] = []
    number = 0
    for planned, records in rows:
        runs = []
        for run in records:
            started = (datetime(2026, 1, 31, 8, 0, tzinfo=UTC) + timedelta(seconds=2 * number)).isoformat()
            changed = msgspec.structs.replace(run.result, started_at=started, before=before, host="lab-7",
                                              elapsed_ns=1_800_000_000, push_ns=40_000_000)  # fmt: skip
            runs.append(msgspec.structs.replace(run, result=changed))
            number += 1
        made.append((planned, tuple(runs)))
    return made


def artifact(model: str, variant: Variant) -> Artifact:
    return Artifact(
        model=model, variant=variant, file=f"{model}.{variant.name}.ort", size_bytes=26_004, sha256="3f" * 32,
        semantic_digest="9a" * 32, operators={"ai.onnx:Conv": 2}, source_operators={"ai.onnx:Conv": 2},
    )  # fmt: skip


def make_report(
    name: str = "mnist", model: str = "mnist", device: str = "adb:R58M123", text: str = ""
) -> CampaignReport:
    """A whole report; `text` is put wherever a model or a device has a say."""
    rows = [*measured(model, "local"), *measured(model, device)]
    failures, skipped = ends_of(rows)
    variants = dict.fromkeys(planned.variant for planned, _ in rows)
    return CampaignReport(
        name=name,
        campaign="c0ffee",
        created_at="2026-01-31T08:15:30.123Z",
        margin=0.05,
        host=Host(system="Linux", machine="x86_64", cpu="a processor", cores=2, memory_bytes=8 << 30, python="3.11.2"),
        versions={"ort-mobile": "1.0.0", "onnxruntime": "1.23.2", "onnx": "1.19.0"},
        models=(
            ModelFacts(name=model, file=f"examples/{model}.onnx", size_bytes=25_188, sha256="ab" * 32),
            ModelFacts(name="broken", file="broken.onnx", error=f"not an ONNX file{text}", remedy="check the download"),
        ),
        devices=(
            DeviceFacts(name="local", platform="linux", memory_bytes=8 << 30),
            DeviceFacts(name=device, platform="android", manufacturer="Maker", model=f"Phone{text}", soc="SM9999",
                        abis=("arm64-v8a", "armeabi-v7a"), api_level=34, os_release="14", memory_bytes=8 << 30),
        ),
        artifacts=(
            artifact(model, Variant(level=Level.BASIC)),
            artifact(model, Variant(level=Level.EXTENDED, style=Style.RUNTIME, providers=("nnapi",))),
        ),
        rows=make_rows(rows, {(model, variant): 26_000 + n for n, variant in enumerate(variants)}),
        skipped=(*skipped, Skipped(what=f"no NNAPI in this libonnxruntime{text}", device="local", run="nnapi")),
        failures=tuple(msgspec.structs.replace(failure, what=failure.what + text) for failure in failures),
        choices=(
            ChoiceRow(target="android", model=model, variant="extended-fixed", run="cpu", file=f"{model}.ort",
                   reason="fastest of those whose outputs are right: 0.62 of the baseline", device=device),
        ),
        warnings=(warning(f"the first device was left in round 5{text}"),),
    )  # fmt: skip
