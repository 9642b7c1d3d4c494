"""The checklist: what each row proposes, what a remedy changes, and how measured rounds become findings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.device import DeviceFacts
from device_runner.local import machine_abi
from device_runner.profile import CPU
from device_runner.result import Failure, FailureKind, OperatorTime, Profile, RunResult, Status
from device_runner.spec import Allocator, ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions
from pipeline.campaign.record import RunRecord
from pipeline.campaign.run_options import options_name
from pipeline.campaign.statistics.compare import DecisionRule
from pipeline.check.compare import OutputCheck
from pipeline.core.errors import MissingError
from pipeline.features.doctor.checks import CAST_KEY, CHECKS, DENORMAL_KEY
from pipeline.features.doctor.diagnosis import (
    Start,
    finding_of_check,
    latency_comparisons,
    measured,
    typical,
    winners,
)
from pipeline.features.doctor.examined import ExaminedModel, examine
from pipeline.features.doctor.finding import DoctorFinding, MeasuredRemedy, Outcome, Remedy, together
from pipeline.partition.answer import ModelAnswer, Settings, SizedAnswer
from tests.onnx_samples import parsed_nodes
from tests.report_samples import BAD, GOOD, record

RULE = DecisionRule(margin=0.01)
ROWS = {check.code: (check, propose) for check, propose in CHECKS}


def result(
    *operators: tuple[str, float], first_run_ns: int = 100, version: str = "1.31.1", providers: str = ""
) -> RunResult:
    """A run whose profile has operators with their shares of the time."""
    rows = tuple(
        OperatorTime(operator=name, provider=CPU, nodes=3, nanoseconds=share, share=share) for name, share in operators
    )
    return RunResult(
        spec_id="s", device="d", status=Status.OK, ort_version=version, latencies_ns=(90, 100, 110),
        first_run_ns=first_run_ns, available_providers=(CPU, *providers.split()),
        profile=Profile(inferences=3, operators=rows, partitions={}),
    )  # fmt: skip


def subject(**changes: object) -> ExaminedModel:
    """An .onnx file on a phone with four slow and two fast cores."""
    facts = DeviceFacts(name="d", platform="android", core_max_mhz=(1800,) * 4 + (2600,) * 2)
    made = ExaminedModel(
        path="m.onnx", start=RunOptions(), facts=facts, usual=result(), profiled=result(), operators={"Conv": 3},
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def proposed(check: str, **changes: object) -> DoctorFinding:
    row, propose = ROWS[check]
    return propose(row, subject(**changes))


def remedies(proposal: DoctorFinding) -> list[Remedy]:
    return [measured.remedy for measured in proposal.measured]


def names(proposal: DoctorFinding) -> list[str]:
    return [remedy.name for remedy in remedies(proposal)]


def refusal(check: str, **changes: object) -> str:
    """Why a check does not apply, "" where it does."""
    finding = proposed(check, **changes)
    return finding.what if finding.outcome is Outcome.NOT_APPLICABLE else ""


def runs(check: str, **changes: object) -> list[str]:
    """The names of the run options that a check tries."""
    start = subject(**changes).start
    return [options_name(remedy.options(start)) for remedy in remedies(proposed(check, **changes))]


def test_threads_are_tried_as_one_two_fast_and_all() -> None:
    assert runs("threads") == ["cpu+threads=1", "cpu+threads=2", "cpu+threads=6"]
    assert runs("threads", start=RunOptions(intra_op_threads=2)) == ["cpu", "cpu+threads=1", "cpu+threads=6"]
    assert runs("threads", facts=DeviceFacts(name="d", platform="linux")) == ["cpu+threads=1", "cpu+threads=2"]
    assert runs("affinities") == ["cpu+threads=2+affinities=6"]
    assert (
        proposed("threads", start=RunOptions(intra_op_threads=8)).what
        == "8 threads on 6 cores: more threads than cores"
    )
    assert not proposed("threads", start=RunOptions(intra_op_threads=6)).remedy
    equal = DeviceFacts(name="d", platform="linux", core_max_mhz=(2000, 2000))
    assert "equally fast" in refusal("affinities", facts=equal)


def test_threads_keep_to_fast_cores_come_first_and_stay_on_a_numa_node() -> None:
    assert runs("thread-cores") == ["cpu+threads=2+thread_cores=big"]
    assert runs("thread-nice") == ["cpu+thread_nice=-4"]
    assert "set already" in refusal("thread-cores", start=RunOptions(thread_cores="1-2"))
    mac = DeviceFacts(name="d", platform="macos", core_max_mhz=(2000, 3000, 3000))
    assert all("neither core masks" in refusal(row, facts=mac) for row in ("thread-cores", "thread-nice"))
    assert "tells of no NUMA" in refusal("numa")
    node = DeviceFacts(name="d", platform="linux", numa_nodes=("1-2",))
    assert "one NUMA node" in refusal("numa", facts=node)
    nodes = msgspec.structs.replace(node, numa_nodes=("1-2,5-6", "3-4,7-8"))
    assert runs("numa", facts=nodes) == ["cpu+threads=4+thread_cores=1-2,5-6"]
    assert "numactl --cpunodebind=0" in proposed("numa", facts=nodes).remedy
    large = msgspec.structs.replace(node, numa_nodes=("1-48,97-144", "49-96,145-192"))  # beyond what masks have
    assert (runs("numa", facts=large), proposed("numa", facts=large).what[:12]) == ([], "2 NUMA nodes")


def test_allocators_are_tried_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = DeviceFacts(name="local", platform="linux", abis=(machine_abi(),))
    monkeypatch.setattr("device_runner.local.find_allocator", lambda name: "libx.so" * (name == "jemalloc"))
    assert runs("allocator", facts=host) == ["cpu+allocator=jemalloc"]
    assert proposed("allocator", facts=host).what == "mimalloc is not installed (apt-get install libmimalloc2.0)"
    assert "not installed" in refusal("allocator", facts=host, start=RunOptions(allocator=Allocator.JEMALLOC))
    emulated = msgspec.structs.replace(host, abis=("riscv64",))
    assert all("hosts only" in refusal("allocator", facts=facts) for facts in (emulated, subject().facts))


def test_switches_are_turned_the_other_way_round() -> None:
    assert runs("spinning") == ["cpu+spinning=off"]
    off = RunOptions(session_config={"session.intra_op.allow_spinning": "0"})
    assert runs("spinning", start=off) == ["cpu+spinning=on"]
    assert refusal("spinning", start=RunOptions(intra_op_threads=1))
    assert runs("arena") == ["cpu+memory_arena=off"]
    assert runs("arena", start=RunOptions(cpu_arena=False)) == ["cpu"]
    assert runs("prepacking") == ["cpu+prepacking=off"]
    assert runs("prepacking", start=RunOptions(session_config={"session.disable_prepacking": "1"})) == ["cpu"]
    assert runs("denormals") == [f"cpu+{DENORMAL_KEY}=1"]
    parallel = RunOptions(execution_mode=ExecutionMode.PARALLEL, inter_op_threads=3)
    assert runs("execution-mode", start=parallel) == ["cpu"]
    assert refusal("memory-pattern", start=parallel)
    assert runs("execution-mode", width=2) == ["cpu+inter_op_threads=2+execution_mode=parallel"]
    assert "two operators" in refusal("execution-mode")


def test_files_decide_about_level_format_and_mapping() -> None:
    assert runs("level") == ["cpu+level=extended"]
    assert runs("level", start=RunOptions(optimization_level=OptimizationLevel.BASIC)) == ["cpu"]
    assert refusal("level", path="m.ort")
    (remedy,) = remedies(proposed("ort-format"))
    assert remedy.ort_format
    assert remedy.options(RunOptions(optimization_level=OptimizationLevel.BASIC)).optimization_level == "all"
    assert refusal("ort-format", path="m.ort")
    assert refusal("mapping")
    assert names(proposed("mapping", path="m.ort")) == ["memory mapping"]
    assert "1.26" in refusal("mapping", path="m.ort", usual=result(version="1.25.0"))


def test_transposes_and_casts_are_told_with_their_share() -> None:
    slow = result(("Transpose", 0.2), ("ReorderInput", 0.1), ("Cast", 0.05), ("Conv", 0.65))
    found = proposed("transposes", profiled=slow)
    assert found.share == pytest.approx(0.3)
    assert names(found) == ["level=extended"]
    assert "20.0% of the time in 3 Transpose nodes, 10.0% in changes of layout" in found.what
    assert "channels first" in found.remedy
    assert proposed("transposes", profiled=result(("ReorderInput", 0.1))).remedy == ""
    assert "again" in proposed("transposes", profiled=result(("ReorderInput", 0.1)), path="m.ort").remedy
    on_nnapi = RunOptions(provider="nnapi", flags=(NnapiFlag.USE_FP16,))
    assert runs("transposes", profiled=slow, start=on_nnapi)[0] == "nnapi+USE_FP16+USE_NCHW"
    assert refusal("transposes") == "they take 0.0% of the time"
    assert runs("casts", profiled=slow) == [f"cpu+{CAST_KEY}=1"]
    assert names(proposed("casts", profiled=slow, path="m.ort")) == []
    assert "float model" in proposed("casts", profiled=slow, half=True).remedy
    assert refusal("casts") == "no Cast node is left"


def test_dynamic_dimensions_are_fixed_and_what_that_unblocks_is_told() -> None:
    answer = ModelAnswer(
        path="m", ep="nnapi", ort_release="1.31", nodes=9, claimed=0,
        fixed=SizedAnswer(sizes={"n": 1}, nodes=9, claimed=8, partitions=1),
    )  # fmt: skip
    names = ("n", "x[2]")
    found = proposed("dimensions", open=names, answers={"nnapi": answer}, sizes={"n": 1, "x[2]": 16})
    assert found.what == "NNAPI claims 0 of 9 nodes, with sizes 8"
    assert [remedy.steps for remedy in remedies(found)] == [("fixed-dimensions:sizes=n=1+x[2]=16",)]
    assert "test data" in refusal("dimensions", open=names)
    assert refusal("dimensions") == "every input dimension has a size"


def test_providers_of_the_library_are_tried_where_they_claim_something() -> None:
    library = result(providers="NnapiExecutionProvider XnnpackExecutionProvider QNNExecutionProvider")
    none = ModelAnswer(path="m", ep="nnapi", ort_release="1.31", nodes=9, claimed=0)
    found = proposed("providers", usual=library, answers={"nnapi": none})
    assert names(found) == ["provider=xnnpack with 2 threads", "provider=qnn"]
    assert found.what == "NNAPI: claims none of 9 nodes"
    assert runs("providers", usual=library)[:3] == [
        "nnapi", "nnapi+USE_FP16", "xnnpack+threads=1+intra_op_num_threads=2",
    ]  # fmt: skip
    assert [remedy.lossy for remedy in remedies(proposed("providers", usual=library))][:2] == [False, True]
    assert runs("providers", usual=library, start=RunOptions(provider="xnnpack"))[0] == "cpu"
    assert refusal("providers") == "the library has no other execution provider"


def test_small_partitions_are_told_with_the_command() -> None:
    few = ModelAnswer(path="m", ep="nnapi", ort_release="1.31", nodes=9, claimed=8, partitions=(("a",),))
    many = msgspec.structs.replace(few, claimed=4, partitions=(("a",), ("b",), ("c",)))
    assert refusal("partitions", answers={"nnapi": few}) == (
        "partitions are few or large: NNAPI 1 for 8 nodes"
    )  # fmt: skip
    found = proposed("partitions", answers={"nnapi": many})
    assert found.what == "NNAPI: 4 nodes in 3 partitions"
    assert found.remedy == "ort-mobile partition MODEL --ep nnapi --advise"


def test_precision_diagnostics_and_the_first_run() -> None:
    assert "1 " not in refusal("precision")
    assert proposed("precision").what == "3 of its nodes have 8-bit forms: Conv"
    assert "already" in refusal("precision", operators={"QLinearConv": 2})
    left_on = RunOptions(session_config={"enable_profiling": "1", "session.disable_prepacking": "1"})
    assert runs("diagnostics", start=left_on) == ["cpu+prepacking=off"]
    assert "telemetry" in refusal("diagnostics")
    assert "2.5 times" in proposed("first-run", usual=result(first_run_ns=250)).what
    assert refusal("first-run")
    known = Start(run="cpu", rounds=9, median_ns=100.4, first_run_ns=140)
    pilot = result(first_run_ns=2310)
    assert "1.4 times" in refusal("first-run", usual=typical(pilot, known)), "rounds know more than a process"
    assert typical(pilot, Start(run="cpu")) is pilot


def test_every_check_has_a_source_and_says_something_for_every_model() -> None:
    assert len(ROWS) == len(CHECKS)
    for path in ("m.onnx", "m.ort"):
        for provider in ("cpu", "nnapi"):
            model = subject(path=path, start=RunOptions(provider=provider))
            for check, propose in CHECKS:
                found = propose(check, model)
                assert found.what or found.measured, check.code
                assert not (found.measured and found.outcome is Outcome.NOT_APPLICABLE), check.code
                assert check.source.endswith(".html"), check.code


def test_remedies_together_keep_the_last_word_to_the_last() -> None:
    fixed = Remedy(name="a", settings={"threads": 2, "session_config": {"x": "1"}}, steps=("s",))
    mapped = Remedy(name="b", settings={"threads": 1, "session_config": {"y": "2"}}, without=("z",), ort_format=True)
    both = together([fixed, mapped])
    assert (both.name, both.steps, both.ort_format) == ("a + b", ("s",), True)
    made = both.options(RunOptions(session_config={"z": "1"}, optimization_level=OptimizationLevel.BASIC))
    assert made == RunOptions(intra_op_threads=1, session_config={"x": "1", "y": "2"})


def test_the_width_of_a_graph_is_how_many_heavy_operators_are_level(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    nodes = parsed_nodes("a = MatMul (x, x)  b = MatMul (x, x)  c = Add (a, b)  y = MatMul (c, x)")
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", "n"])], [value("y", TensorProto.FLOAT, ["n", "n"])]
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = examine(subject(path=str(path)), (Settings(provider="nnapi"),))
    assert (found.operators, found.width, found.open) == ({"MatMul": 3, "Add": 1}, 2, ("n",))
    assert (found.answers["nnapi"].nodes, found.answers["nnapi"].dynamic) == (4, ("n",))


def rounds(factor: float, *, check: OutputCheck = GOOD) -> list[RunRecord]:
    """Eight rounds of three inferences each, with a little noise that all share."""
    noise = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99)
    made = []
    for number, drift in enumerate(noise):
        latency = int(1e6 * factor * drift * (1 + 0.0005 * (number % 3)))
        made.append(record(number, (latency,) * 3, check=check))
    return made


def proposal_of(*names: str) -> DoctorFinding:
    shells = tuple(MeasuredRemedy(remedy=Remedy(name=name), run="r") for name in names)
    return msgspec.structs.replace(ROWS["threads"][0], measured=shells)


def judged(all_rounds: dict[str, list[RunRecord]], proposal: DoctorFinding) -> list[MeasuredRemedy]:
    start: Sequence[RunRecord] = rounds(1.0)
    compared = latency_comparisons(start, all_rounds, RULE)
    found = []
    for shell in proposal.measured:
        name = shell.remedy.name
        found.append(measured(shell, start, all_rounds[name], compared.get(name), RULE))
    return found


def test_the_best_remedy_that_counts_is_the_finding() -> None:
    proposal = proposal_of("a", "b", "wrong", "failed")
    failure = Failure(code=FailureKind.CRASH, what="killed by SIGSEGV", remedy="leave it out")
    given = {
        "a": rounds(0.8), "b": rounds(0.7), "wrong": rounds(0.1, check=BAD),
        "failed": [record(0, (), failure)],
    }  # fmt: skip
    found = finding_of_check(proposal, judged(given, proposal))
    assert (found.outcome, found.best) == (Outcome.GAIN, "b")
    assert [one.why[:20] for one in found.measured] == ["", "", "output 'logits' is n", "killed by SIGSEGV; l"]
    assert [one.remedy.name for one in winners([found])] == ["b"]


def test_no_gain_and_nothing_measured_are_different() -> None:
    proposal = proposal_of("a")
    same = finding_of_check(proposal, judged({"a": rounds(1.0)}, proposal))
    assert (same.outcome, same.best, winners([same])) == (Outcome.NO_GAIN, "", [])
    never = finding_of_check(proposal, judged({"a": []}, proposal))
    assert never.outcome is Outcome.UNTESTED
    assert "the time was over" in never.measured[0].why
    assert finding_of_check(proposed("level", path="m.ort"), []).outcome is Outcome.NOT_APPLICABLE
    assert finding_of_check(proposed("precision"), []).outcome is Outcome.NOTE


def test_a_phone_with_a_snapdragon_is_told_how_to_ask_about_its_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    phone = DeviceFacts(name="d", platform="android", soc="QTI SM8635")
    monkeypatch.setattr(
        "pipeline.partition.kept.compiler_lacking", lambda: MissingError("no compiler", remedy="install it")
    )
    lacking = proposed("npu", facts=phone)
    assert "SM8635 (Snapdragon 8s Gen 3), which computes integers" in lacking.what
    assert lacking.remedy == "install it"
    monkeypatch.setattr("pipeline.partition.kept.compiler_lacking", lambda: None)
    monkeypatch.setattr("pipeline.partition.kept.compiler_name", lambda: "a compiler")
    assert "--chip SM8635 --advise" in proposed("npu", facts=phone).remedy
    assert refusal("npu")
