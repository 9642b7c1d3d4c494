"""One registry of execution providers; tests/test_recipes.py shows that what a row adds is found everywhere."""

import pytest

from device_runner.providers import OTHER_NAMES, PROVIDERS, provider_named
from device_runner.spec import RunOptions
from pipeline.core.errors import ConfigError
from pipeline.core.providers import BUILD_PROVIDERS, PROVIDER_RULES, rules_of_run
from pipeline.partition.answer import make_settings


def test_the_registries_agree() -> None:
    assert set(BUILD_PROVIDERS) <= set(PROVIDERS)
    assert all(row.name == name and row.provider in PROVIDERS for name, row in PROVIDER_RULES.items())
    assert all(row.name == name for name, row in PROVIDERS.items())
    assert set(OTHER_NAMES) & set(PROVIDERS) == set()


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        (RunOptions(provider="nnapi"), "nnapi"),
        (RunOptions(provider="coreml"), "coreml-nn"),
        (RunOptions(provider="coreml", provider_options={"ModelFormat": "MLProgram", "x": "1"}), "coreml-mlprogram"),
        (RunOptions(provider="coreml", provider_options={"ModelFormat": "other"}), "coreml-nn"),
        (RunOptions(provider="qnn"), None),
        (RunOptions(provider="made-up"), None),
    ],
)
def test_a_run_leads_to_the_rules_of_its_claims(options: RunOptions, rules: str | None) -> None:
    found = rules_of_run(options.provider, options.provider_options)
    assert (found and found.name) == rules


def test_a_name_without_rules_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings("cuda")
    assert caught.value.what == "no rules for the execution provider 'cuda'"
    assert caught.value.remedy == f"use one of {', '.join(PROVIDER_RULES)}"


def test_a_name_without_a_row_is_passed_on_as_it_is() -> None:
    made_up = provider_named("MadeUp")
    assert (made_up.append_name, made_up.has_flags, made_up.has_options, made_up.nhwc) == ("MadeUp", False, True, None)
