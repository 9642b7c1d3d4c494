"""Which sessions judge an artifact before anything is measured."""

from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.config import RunConfig
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.job.sessions import app_sessions, sessions_of
from pipeline.model.session import AppSession

WITHOUT = {"session.disable_prepacking": "1"}


def test_runs_that_differ_in_speed_or_provider_alone_are_judged_once() -> None:
    entries = {
        "session.intra_op.allow_spinning": "0", "session.dynamic_block_base": "4", "ep.context_file_path": "a.onnx",
        "session.disable_cpu_ep_fallback": "1",
    }  # fmt: skip
    runs = [RunOptions(), RunOptions(intra_op_threads=4), RunOptions(provider="nnapi", session_config=entries)]
    assert sessions_of(runs) == sessions_of([]) == (AppSession(),)


def test_levels_and_entries_that_can_change_numbers_are_judged_apart() -> None:
    basic = OptimizationLevel.BASIC
    both = {"b": "2", **WITHOUT}, {**WITHOUT, "b": "2"}  # one session, in whichever order they are written
    runs = [RunOptions(), *(RunOptions(session_config=config, optimization_level=basic) for config in both)]
    sessions = sessions_of(runs)
    assert [session.text for session in sessions] == ["", "at level basic with b=2, session.disable_prepacking=1"]
    assert sessions[1].level is Level.BASIC


def test_a_file_is_judged_in_the_sessions_of_its_own_runs() -> None:
    runs = [RunConfig(variants=("all-*",), prepacking=False), RunConfig(provider="nnapi", variants=("basic-*",))]
    of_levels = {
        level: Artifact(
            model="m", variant=Variant(level=level, style=Style.FIXED), file="m.ort", source_operators={}, size_bytes=1,
            sha256="", semantic_digest="", operators={},
        )
        for level in (Level.ALL, Level.BASIC)
    }  # fmt: skip
    assert app_sessions(runs, of_levels[Level.ALL]) == (AppSession(config=WITHOUT),)
    assert app_sessions(runs, of_levels[Level.BASIC]) == (AppSession(),)
