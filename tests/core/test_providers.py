"""One registry of execution providers: what a row there adds is found everywhere.

A provider that does not exist is registered in Python processes of their own by a `sitecustomize` module, which workers
import too, with rules that claim every Relu.
"""

import json
from pathlib import Path
from typing import Any

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

REGISTER = """
from device_runner.providers import PROVIDERS, ExecutionProvider
from pipeline.core.providers import BUILD_PROVIDERS, PROVIDER_RULES, BuildProvider, ProviderRules
from pipeline.core.releases import Release

PROVIDERS["tpu"] = ExecutionProvider(
    name="tpu", title="TPU", ort_name="TpuExecutionProvider", java="addTpu", nhwc=False, min_api_level=33
)
PROVIDER_RULES["quick-tpu"] = ProviderRules(
    name="quick-tpu", provider="tpu", title="TPU (quick)", options={"mode": "quick"},
    rules_module="tpu_rules", load_module="tpu_rules",
)
BUILD_PROVIDERS["tpu"] = BuildProvider(flag="--use_tpu", platforms=frozenset({"android"}), since=Release(1, 20))
"""

RULES = """
from pipeline.partition.answer import LoadForecast, Refusal
from pipeline.partition.rules import Claim

TABLE = {"Relu": None}

def claim(graph, settings, only=None):
    nodes = [node for node in graph.nodes.values() if only is None or node.index in only]
    refusal = Refusal("op", "the TPU has Relu only", "use Relu")
    return Claim(
        groups=tuple((node,) for node in nodes if node.op_type in TABLE),
        refusals={node.index: refusal for node in nodes if node.op_type not in TABLE},
    )

def forecast(rounds, settings):
    (_, first), *_ = rounds
    return LoadForecast(partitions=len(first.groups))

def build_refusal(graph, groups, settings):
    return None
"""

CONFIG = """
name = "quick"
compare = ["quick-tpu"]
[[models]]
path = "model.onnx"
[[targets]]
name = "phone"
platform = "android"
"""

PLAN = """
import json
from pathlib import Path
from device_runner.device import DeviceFacts
from pipeline.campaign.plan import plan_runs
from pipeline.config import read_config
from pipeline.config.read import wanted_variants
from pipeline.core.variant import Artifact

config = read_config(Path("config.toml"))
artifacts = [
    Artifact(model="m", variant=one, file=one.name, size_bytes=1, sha256="0" * 64, semantic_digest="1" * 64,
             operators={}, source_operators={})
    for one in wanted_variants(config.variants)
]
phones = [DeviceFacts(name=f"adb:{level}", platform="android", api_level=level) for level in (32, 33)]
lanes, skipped = plan_runs(config.runs, artifacts, phones)
print(json.dumps({
    "runs": [f"{lane.device} {lane.run_name}" for lane in lanes],
    "options": [lane.run_options.provider_options for lane in lanes if lane.options.provider == "tpu"],
    "skipped": [f"{one.device}: {one.text}" for one in skipped if one.run.startswith("tpu")],
}))
"""

CODE = """
from device_runner.spec import RunOptions
from pipeline.release.app_code import code_for

options = RunOptions(provider="tpu", provider_options={"mode": "quick"})
print("\\0".join("\\n".join(lines) for lines in code_for("android", options, "m.ort").values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, a config, and a provider that is registered in every Python that starts with it."""
    files = {"sitecustomize.py": REGISTER, "tpu_rules.py": RULES, "config.toml": CONFIG}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    onnx.save(chain("Relu", "Abs", "Relu"), tmp_path / "model.onnx")
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    """Stdout of a Python process that has the provider."""
    return command.python(*arguments, cwd=folder, path=folder).out


def test_the_command_line_offers_it(folder: Path) -> None:
    pages = (["partition", "--help"], ["convert", "--help"], ["help", "session-options"])
    helps = [python(folder, "-m", "pipeline", *words) for words in pages]
    offered = ["".join(text.split()) for text in helps]  # words may be broken at the end of a line
    assert ["quick-tpu" in offered[0], "quick-tpu" in offered[1], ",tpu," in offered[2]] == [True, True, True]
    assert "tpu" in python(folder, "-m", "pipeline", "op-config", "create", "--help")


def test_its_rules_are_asked_under_the_name_of_its_run_too(folder: Path) -> None:
    answers = json.loads(python(folder, "-m", "pipeline", "partition", "model.onnx", "--ep", "tpu", "--json", "-"))
    (model,) = answers["models"]
    assert (model["ep"], model["claimed"], model["nodes"], model["load"]["partitions"]) == ("quick-tpu", 2, 3, 2)
    assert {one["reason"] for one in model["decisions"] if not one["claimed"]} == {"the TPU has Relu only"}


def test_the_table_of_check_has_it(folder: Path) -> None:
    rows = python(folder, "-m", "pipeline", "check", "model.onnx").splitlines()
    (row,) = [line.removeprefix("TPU (quick)").split() for line in rows if line.startswith("TPU (quick)  ")]
    assert row == ["2/3", "2", "no"]


def test_a_campaign_plans_it_with_reasons_where_it_cannot_run(folder: Path) -> None:
    plan: dict[str, list[Any]] = json.loads(python(folder, "-c", PLAN))
    wanted = {"adb:33 basic-fixed/tpu+mode=quick", "adb:33 extended-fixed-quick-tpu/tpu+mode=quick"}
    assert wanted <= set(plan["runs"])
    assert plan["options"]
    assert all(options == {"mode": "quick"} for options in plan["options"])
    remedy = "use a device with API level 33 or higher, or leave tpu out"
    assert set(plan["skipped"]) == {f"adb:32: API 32: TPU needs 33; {remedy}"}


def test_the_schema_of_configs_has_it(folder: Path) -> None:
    schema = json.loads(python(folder, "-m", "pipeline", "schema"))
    assert "quick-tpu" in schema["$defs"]["Accelerator"]["enum"]


@pytest.mark.long
def test_models_aware_of_it_are_made_and_reported(folder: Path) -> None:
    python(folder, "-m", "pipeline", "run", "config.toml", "--convert-only", "--output", "out")
    assert (folder / "out" / "artifacts" / "model.extended-fixed-quick-tpu.ort").is_file()
    assert "| model | extended-fixed-quick-tpu |" in (folder / "out" / "report.md").read_text()


def test_the_code_for_apps_appends_it(folder: Path) -> None:
    kotlin, _, cpp = python(folder, "-c", CODE).split("\0")
    assert 'options.addTpu(mapOf("mode" to "quick"))' in kotlin
    assert 'options.AppendExecutionProvider("tpu", {{"mode", "quick"}});' in cpp


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
