"""The registry of precisions: names, steps that their passes accept, recipes and candidates."""

import re

import msgspec
import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.variant import OWN_PRECISION
from pipeline.passes.precisions import (
    AUTO,
    CANDIDATES,
    OLDER,
    PRECISIONS,
    RECIPES,
    candidates,
    resolve_precision,
    resolve_precisions,
    steps_at,
    unsuited,
)
from pipeline.passes.registry import options_of

PROVIDERS = {"cpu", *PROVIDER_RULES}


def test_names_stand_in_names_of_variants() -> None:
    words = {
        "none",
        "basic",
        "extended",
        "layout",
        "all",
        "fixed",
        "runtime",
        OWN_PRECISION,
        AUTO,
        "coreml",
        *PROVIDERS,
    }
    for name in PRECISIONS:
        assert re.fullmatch(r"[a-z0-9]+", name)
        assert name not in words | RECIPES.keys()


def test_what_is_said_of_providers_is_said_of_providers_that_there_are() -> None:
    assert {recipe.provider for recipe in RECIPES.values()} <= PROVIDERS
    assert CANDIDATES.keys() <= PROVIDERS | {"cpu-arm64", "cpu-x86_64"}


def test_no_recipe_or_candidate_is_unsuited_to_its_provider() -> None:
    names = [(recipe.provider, recipe.precision) for recipe in RECIPES.values()]
    chosen = [*names, *((RECIPES[name].provider, older) for name, older in OLDER.items() if name in RECIPES)]
    chosen += [(provider, name) for provider, names in CANDIDATES.items() for name in names if provider != "coreml-nn"]
    for provider, name in chosen:
        assert not unsuited(name, provider)


def test_a_reason_names_precisions_that_there_are() -> None:
    for rules in PROVIDER_RULES.values():
        for reason in rules.unsuited.values():
            for name in re.findall(r"\b[us]\d+[us]8\w*|\bfp16\b", reason):
                assert name in PRECISIONS


def test_forms_that_are_unsuited_are_precisions_or_come_in_so() -> None:
    others = ["s16s8", "u16u16pc"]  # no precision makes these
    for rules in PROVIDER_RULES.values():
        for pattern in rules.unsuited:
            assert any(re.fullmatch(pattern, form) for form in (*PRECISIONS, *others)), f"{rules.name}: {pattern}"


def test_static_precisions_need_data_and_others_do_not() -> None:
    assert {name for name, one in PRECISIONS.items() if not one.needs_data} == {
        "fp16", "fp16gpu", "dyn8", "w8", "w4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "level", "meant"),
    [
        ("int8-nnapi", 29, "u8s8nnapi"),
        ("int8-nnapi", 28, "u8u8nnapi"),
        ("int8-nnapi", None, "u8s8nnapi"),
        ("int8-xnnpack", 21, "s8s8xnnpack"),
        ("coreml-fp16", None, "fp16"),
        ("int8", None, "s8s8pc"),
        ("u8u8", 31, "u8u8"),
        ("float", 31, ""),
        ("auto", 31, "auto"),
        ("mixnnapi", 29, "mixnnapi"),
        ("mixnnapi", 28, "mixu8u8nnapi"),
        ("u8s8nnapi", 28, "u8s8nnapi"),
    ],
)
def test_names_and_what_they_mean(name: str, level: int | None, meant: str) -> None:
    assert resolve_precision(name, level) == meant


def test_searches_for_nnapi_count_partitions_at_the_level_of_the_target() -> None:
    (step,) = steps_at("mixu8u8nnapi", 27)
    assert (step.do, step.options["api_level"]) == ("mixed-precision", 27)
    assert not step.options["per_channel"], "a scale for each channel is since level 29"
    assert steps_at("mixxnnpack", 27) == PRECISIONS["mixxnnpack"].steps
    assert steps_at("mixnnapi", None) == PRECISIONS["mixnnapi"].steps


def test_each_precision_once() -> None:
    assert resolve_precisions(["float", "int8-nnapi", "u8s8nnapi", "int8"], 31) == ("", "u8s8nnapi", "s8s8pc")


@pytest.mark.parametrize(
    ("word", "answers"),
    [
        ("uint8", ("int8 for the CPU", "int8-nnapi", "auto")),
        ("QDQ", ("auto",)),
        ("half", ("fp16",)),
        ("u8s8p", ("u8s8pc",)),
    ],
)
def test_a_usual_word_gets_the_names_to_choose_among(word: str, answers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_precision(word)
    assert all(answer in caught.value.remedy for answer in answers)
    assert len(caught.value.remedy) < 120


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no precision 'zzz'") as caught:
        resolve_precision("zzz", where="my.toml:7")
    assert caught.value.where == "my.toml:7"
    assert "u8s8pc" in caught.value.remedy
    with pytest.raises(ConfigError) as caught:
        resolve_precision("u8s8nnap")
    assert caught.value.remedy == "did you mean 'u8s8nnapi'?"


def test_per_channel_weights_are_not_tried_where_nnapi_has_none() -> None:
    assert "u8s8nnapi" in candidates("nnapi", 29)
    assert "u8s8nnapi" not in candidates("nnapi", 28)
    assert candidates("cpu-arm64")[0] == "s8s8pc"
    assert candidates("cpu-x86_64")[0] == "u8s8pc"
    assert candidates("qnn") == ()


@pytest.mark.parametrize(
    ("form", "reason"),
    [("s16s8pc", "s16 values"), ("u16u16", "8-bit weights only"), ("u8u8op", "few operators"), ("w4", "some operators"),
     ("u8s8pc", ""), ("u16s8pc", ""), ("", "")],
)  # fmt: skip
def test_forms_that_are_not_for_an_npu_have_reasons(form: str, reason: str) -> None:
    said = unsuited(form, "qnn")
    assert reason in said
    assert bool(said) == bool(reason)


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_can_leave_nodes_float(name: str) -> None:
    (step,) = steps_at(name, None, ("Pow_1",))
    assert msgspec.structs.asdict(options_of(step))["exclude"] == ("Pow_1",)
