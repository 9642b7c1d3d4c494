"""One registry of execution providers; tests/test_recipes.py shows that what a folder adds is found everywhere."""

import shutil
from importlib import import_module
from pathlib import Path

import onnx
import pytest

from device_runner.providers import OTHER_NAMES, PROVIDERS, provider_named
from device_runner.spec import RunOptions
from pipeline.core.errors import ConfigError
from pipeline.core.providers import BUILD_PROVIDERS, PROVIDER_RULES, rules_of_run
from pipeline.partition.answer import make_settings
from tests import command
from tests.partition_samples import chain

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_folder_has_the_name_of_its_provider() -> None:
    folders = [path.parent.name for path in (ROOT / "pipeline/providers").glob("*/__init__.py")]
    names = {name: import_module(f"pipeline.providers.{name}").PROVIDER.name for name in folders}
    assert names == {name: name for name in folders}
    assert {rules.provider for rules in PROVIDER_RULES.values()} <= set(folders)


IMPORTS = """
from importlib import import_module
from pathlib import Path

from pipeline.core.providers import BUILD_PROVIDERS, PROVIDER_RULES

for path in sorted(Path("pipeline").rglob("*.py")):
    if path.name != "__main__.py" and "migrations" not in path.parts:
        import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
print(*PROVIDER_RULES)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({rules.provider for rules in PROVIDER_RULES.values()}))
def test_the_rest_works_without_a_provider(name: str, tmp_path: Path) -> None:
    """Its folder is deleted and its row: every module can be imported, and commands answer."""
    for package in ("pipeline", "device_runner"):
        shutil.copytree(ROOT / package, tmp_path / package)
    shutil.rmtree(tmp_path / "pipeline/providers" / name)
    table, rows = tmp_path / "device_runner/providers.py", "for provider in _ROWS}"
    text = table.read_text("utf-8")
    assert rows in text
    table.write_text(text.replace(rows, f'{rows[:-1]} if provider.name != "{name}"}}'))
    onnx.save(chain("Relu", "Abs"), tmp_path / "model.onnx")

    def run(*words: str) -> str:
        return command.python(*words, cwd=tmp_path, path=tmp_path, PYTHONSAFEPATH="1").out

    left = [rules for rules, row in PROVIDER_RULES.items() if row.provider != name]
    assert run("-c", IMPORTS).split() == left
    titles = {PROVIDER_RULES[rules].title for rules in left if not PROVIDER_RULES[rules].by_chip}
    shown = run("-m", "pipeline", "check", "model.onnx")
    assert {title for title in titles if title not in shown} == set()
    assert f'"{name}"' not in run("-m", "pipeline", "schema")
    run("-m", "pipeline", "partition", "model.onnx", "--ep", left[0], "--advise")
    run("-m", "pipeline", "convert", "model.onnx", "--ep", left[0], "--output", "out")
    run("-m", "pipeline", "help", "session-options")
