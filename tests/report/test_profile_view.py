"""Two profiles side by side: nodes matched by name, what fell back with its reason, and the same in every format."""

import io

import msgspec
import pytest
from rich.console import Console

from device_runner.profile import CPU, Coverage
from device_runner.result import NodeTime, OperatorTime, Profile, ValueCopy
from pipeline.campaign.record import Prediction, RefusedNodes
from pipeline.report import formats, html, model
from pipeline.report.model import CampaignReport
from pipeline.report.profiles import UNKNOWN_REASON, Profiled, copies, fallen_back, profile_views, taken, view_of

NNAPI = "NnapiExecutionProvider"


def profile(*nodes: tuple[str, str, float], provider: str = CPU, inference_ns: float = 0.0) -> Profile:
    """A profile of nodes given as name, operator and nanoseconds; a name with `@` is on another provider."""
    made = [
        NodeTime(name=name.removesuffix("@"), operator=operator, provider=NNAPI if "@" in name else provider,
                 nanoseconds=time)
        for name, operator, time in nodes
    ]  # fmt: skip
    total = sum(node.nanoseconds for node in made)
    keys = dict.fromkeys((node.operator, node.provider) for node in made)
    operators = []
    for operator, on in keys:
        own = [node for node in made if (node.operator, node.provider) == (operator, on)]
        time = sum(node.nanoseconds for node in own)
        operators.append(OperatorTime(operator=operator, provider=on, nodes=len(own), nanoseconds=time,
                                      share=time / total))  # fmt: skip
    return Profile(
        inferences=1, operators=tuple(operators), partitions={}, nodes=tuple(made), inference_ns=inference_ns
    )


def profiled(variant: str, made: Profile, run: str = "cpu", prediction: Prediction | None = None) -> Profiled:
    return Profiled(
        name=f"m / {variant}", model="m", variant=variant, run=run, device="d", profile=made,
        provider=run.partition("+")[0], prediction=prediction,
    )  # fmt: skip


BEFORE = profiled(
    "none-fixed",
    profile(
        ("/f/Conv", "Conv", 60.0), ("/f/Clip", "Clip", 20.0), ("/a/MatMul", "MatMul", 30.0), ("/a/Add", "Add", 10.0),
        ("/g/Erf", "Erf", 5.0), ("/out", "Softmax", 2.0), inference_ns=150.0,
    ),
)  # fmt: skip
AFTER = profiled(
    "all-fixed",
    profile(
        ("/f/Conv", "FusedConv", 40.0), ("/a/MatMul/MatMulAddFusion", "Gemm", 25.0), ("Gelu", "Gelu", 1.0),
        ("/out", "Softmax", 2.0), inference_ns=80.0,
    ),
)  # fmt: skip
NCHWC = profiled(
    "all-runtime", profile(("/f/Clip_output_0_nchwc", "Conv", 30.0), ("ReorderOutput", "ReorderOutput", 1.0))
)
MEDIANS = {("d", "m", "none-fixed", "cpu"): 100.0, ("d", "m", "all-fixed", "cpu"): 64.0}


def test_what_fused_is_known_by_name() -> None:
    view = view_of(BEFORE, AFTER, MEDIANS)
    assert view.vanished == {"Conv": 1, "Clip": 1, "MatMul": 1, "Add": 1, "Erf": 1}
    assert {one.operator: one.replaced for one in view.fusions} == {
        "FusedConv": {"Conv": 1}, "Gemm": {"MatMul": 1}, "Gelu": {},
    }  # fmt: skip
    assert {one.operator: one.replaced for one in view_of(BEFORE, NCHWC, {}).fusions} == {
        "Conv": {"Clip": 1}, "ReorderOutput": {},
    }  # fmt: skip


def test_times_stand_side_by_side_slowest_first_and_the_profilers_cost_is_stated() -> None:
    view = view_of(BEFORE, AFTER, MEDIANS)
    assert [(row.operator, row.before_ns, row.after_ns) for row in view.operators][:3] == [
        ("Conv", 60.0, 0.0), ("FusedConv", 0.0, 40.0), ("MatMul", 30.0, 0.0),
    ]  # fmt: skip
    assert view.profiler_cost_before == pytest.approx(0.5)
    assert view.profiler_cost_after == pytest.approx(0.25)
    assert view_of(BEFORE, AFTER, {}).profiler_cost_after is None


def test_nodes_fall_back_for_the_reason_of_their_name_then_of_their_operator() -> None:
    prediction = Prediction(
        nodes=9, claimed=5, partitions=2,
        refused=(
            RefusedNodes(operator="Erf", reason="no rule for Erf", nodes=("",)),
            RefusedNodes(operator="Add", reason="rank 5", nodes=("/a/Add", "/b/Add")),
            RefusedNodes(operator="Add", reason="a constant", nodes=("/c/Add",)),
        ),
    )  # fmt: skip
    made = profile(
        ("Nnapi_1_0@", "(partition)", 50.0), ("/g/Erf", "Erf", 30.0), ("/a/Add", "Add", 10.0), ("/c/Add", "Add", 5.0),
        ("/d/Add", "Add", 3.0), ("Transpose_token_1", "Transpose", 2.0),
    )  # fmt: skip
    found = fallen_back(profiled("basic-fixed", made, run="nnapi", prediction=prediction))
    assert [(one.operator, one.reason, one.share) for one in found] == [
        ("Erf", "no rule for Erf", 0.3), ("Add", "rank 5", 0.1), ("Add", "a constant", 0.05),
        ("Add", UNKNOWN_REASON, 0.03), ("Transpose", UNKNOWN_REASON, 0.02),
    ]  # fmt: skip
    assert fallen_back(profiled("basic-fixed", made)) == ()
    assert {one.reason for one in fallen_back(profiled("basic-fixed", made, run="qnn"))} == {""}


def test_the_fastest_of_each_provider_stands_beside_the_least_optimized_on_the_cpu() -> None:
    on_nnapi = profiled("none-fixed", profile(("Nnapi_1_0@", "(partition)", 9.0)), run="nnapi+USE_FP16")
    lost = msgspec.structs.replace(AFTER, variant="basic-fixed", profile=None, failure="no profile")
    ranks = {"none-fixed": 0, "all-fixed": 4, "all-runtime": 4}
    medians = {**MEDIANS, ("d", "m", "all-runtime", "cpu"): 99.0}
    views = profile_views((on_nnapi, lost, NCHWC, AFTER, BEFORE), medians, ranks)
    assert [(view.before, view.after) for view in views] == [
        ("none-fixed/cpu", "none-fixed/nnapi+USE_FP16"), ("none-fixed/cpu", "all-fixed/cpu"),
    ]  # fmt: skip
    assert profile_views((BEFORE,), medians, ranks) == ()


def test_every_format_shows_it(report: CampaignReport) -> None:
    view = view_of(BEFORE, AFTER, MEDIANS)
    refusal = Prediction(refused=(RefusedNodes(operator="Erf", reason="no rule for <Erf>", nodes=("/g/Erf",)),))
    on_nnapi = profiled("x", profile(("P@", "(partition)", 9.0), ("/g/Erf", "Erf", 1.0)), "nnapi", refusal)
    shown = msgspec.structs.replace(report, profile_views=(view, view_of(BEFORE, on_nnapi, MEDIANS)))
    texts = {"md": formats.markdown_page(shown), "html": html.render(shown)}
    console = Console(width=160, record=True, file=io.StringIO())
    formats.show_report(shown, console)
    texts["terminal"] = " ".join(console.export_text().split())
    for name, text in texts.items():
        assert "Profile of m on d: none-fixed/cpu, then all-fixed/cpu" in text, name
        assert "FusedConv" in text, name
        assert "1 nodes fell back to the CPU, with 10.0% of the time" in text, name
        assert "50% and" in text, name
    assert "no rule for &#60;Erf&#62;" in texts["md"]
    assert "no rule for &lt;Erf&gt;" in texts["html"]
    assert model.decode(model.encode(shown)) == shown


def test_copies_beyond_those_that_are_shown_are_one_row() -> None:
    many = tuple(ValueCopy(value=f"v{n}", to_host=True, size_bytes=1024, nanoseconds=1e6 * n) for n in range(1, 19))
    table = copies(profiled("v", msgspec.structs.replace(profile(), copies=many), run="webgpu"))
    assert [row[0] for row in table.rows[:2]] == ["v18", "v17"]
    assert table.rows[15:] == (("3 more, each faster", "", "3.0 KiB", "6.00 ms"),)


def test_nodes_that_were_claimed_before_a_run_failed_are_said_to_be_no_more_than_that() -> None:
    claims = Coverage(provider=NNAPI, partitions=1, nodes=8, claimed_nodes=8)
    failed = Profiled(name="m", run="nnapi", provider="nnapi", coverage=claims, failure="the session was refused")
    assert taken(failed) == "8 of 8 nodes in 1 partition claimed, and then the run failed"
    assert taken(msgspec.structs.replace(failed, failure="")) == "8 of 8 nodes in 1 partition"
