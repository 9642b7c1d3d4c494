"""The rules of the releases, as a table."""

from pathlib import Path

import pytest

from pipeline.compat.defects import unreplayable
from pipeline.config import REPLAY_KEY
from pipeline.convert.request import OptimizerPlatform, SessionSettings, refusal, run_time_options, session_settings
from pipeline.core.releases import Release
from pipeline.core.variant import ConvertedFile, Level, Style, Variant
from tests.command import ort_mobile
from tests.onnx_samples import linear, save
from tests.ort_models import ORT_STYLES

NEW = Release(1, 31)


def variant(level: str, style: str = "fixed") -> Variant:
    return Variant(level=Level(level), style=Style(style))


def of_file(unreplayable: tuple[str, ...] = ()) -> ConvertedFile:
    return ConvertedFile(size_bytes=0, sha256="", semantic_digest="", operators={}, unreplayable=unreplayable)


def test_records_that_cannot_be_replayed_are_known_and_not_asked_for() -> None:
    actions = [("MatMul", False), ("Conv", True), ("MatMul", True), ("dropSplitQDQ", False)]
    assert unreplayable(actions) == ("MatMul", "dropSplitQDQ")
    runtime = Variant(level=Level.EXTENDED, style=Style.RUNTIME)
    assert run_time_options(runtime, NEW, of_file(unreplayable=actions[0][:1])) == {}


def test_styles_are_one_optimization_where_nothing_is_recorded() -> None:
    for level in ("none", "basic"):
        fixed, runtime = (session_settings(variant(level, style), OptimizerPlatform.ARM) for style in ORT_STYLES)
        assert fixed == runtime == SessionSettings(level=Level(level))


def test_runtime_style_is_one_optimization_from_extended_on() -> None:
    made = {
        session_settings(variant(level, "runtime"), OptimizerPlatform.AMD64) for level in ("extended", "layout", "all")
    }
    assert made == {SessionSettings(level=Level.EXTENDED, save_records=True)}


@pytest.mark.parametrize(
    ("platform", "int8_allowed", "nchwc"),
    [
        (OptimizerPlatform.UNSPECIFIED, False, False),
        (OptimizerPlatform.ARM, True, False),
        (OptimizerPlatform.AMD64, False, True),
    ],
)
def test_the_platform_decides_as_in_the_stock_converter(
    platform: OptimizerPlatform, int8_allowed: bool, nchwc: bool
) -> None:
    assert session_settings(variant("all"), platform) == SessionSettings(
        level=Level.ALL, int8_allowed=int8_allowed, nchwc=nchwc
    )
    assert not session_settings(variant("extended"), platform).nchwc


@pytest.mark.parametrize(
    ("wanted", "target", "installed", "said"),
    [
        (variant("layout"), (1, 22), NEW, "layout came with 1.23, the target runs 1.22"),
        (variant("all"), (1, 15), NEW, "cannot load ORT format version 6"),
        (variant("none", "runtime"), (1, 10), NEW, "1.10"),
    ],
)
def test_what_a_release_lacks_is_refused_with_the_reason(
    wanted: Variant, target: tuple[int, int], installed: tuple[int, int], said: str
) -> None:
    reason = refusal(wanted, Release(*target), Release(*installed))
    assert reason is not None
    assert said in reason[0]
    assert reason[1]


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("style", ORT_STYLES)
def test_what_both_releases_have_is_not_refused(level: Level, style: Style) -> None:
    assert refusal(Variant(level=level, style=style), Release(1, 23), NEW) is None


def test_replaying_needs_a_key_from_1_30_on() -> None:
    assert run_time_options(variant("all", "runtime"), Release(1, 30), of_file()) == {REPLAY_KEY: "1"}
    assert run_time_options(variant("all", "runtime"), Release(1, 29), of_file()) == {}
    assert run_time_options(variant("basic", "runtime"), Release(1, 31), of_file()) == {}
    assert run_time_options(variant("all"), Release(1, 31), of_file()) == {}


def test_a_model_of_which_nothing_is_made_is_a_failure(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    asked = ("--level", "layout", "--ort-release", "1.22", "--output", tmp_path / "out")
    ended = ort_mobile("convert", path, *asked, code=1)
    assert "nothing was made of it: every variant is left out" in ended.err
    assert "level layout came with 1.23" in ended.err
    assert ort_mobile("convert", path, "--level", "basic,layout", *asked[2:]).code == 0, "one is enough"
