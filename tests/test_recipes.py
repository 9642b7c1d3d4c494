"""docs/recipes.md is true: the files exist, there are few of them, and its examples work in a copy of the code."""

import json
import re
import shutil
from pathlib import Path

import onnx
import pytest

from tests import command
from tests.partition_samples import chain

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (Add .+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def blocks(title: str) -> list[str]:
    """The Python examples of a recipe."""
    return re.findall(r"^```(?:python|text)\n(.*?)^```", RECIPES[title], re.MULTILINE | re.DOTALL)


def test_the_files_that_are_named_exist() -> None:
    pages = TEXT + (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"`((?:pipeline|device_runner|tests|docs)/[\w./]*)`(?! \(new\))", pages))
    assert len(named) > 15
    assert {path for path in named if not (ROOT / path).exists() and "NAME" not in path} == {"tests/features/largest/"}


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_touches_at_most_three_files(title: str) -> None:
    listed = RECIPES[title].partition("Files:\n")[2].partition("\n\n\n")[0]
    files = re.findall(r"^- `([\w./]+)`( \(new\))?(?: or `[\w./]+`)?: ", listed, re.MULTILINE)
    assert 1 <= len(files) <= 3
    for path, new in files:
        assert (ROOT / path).is_file() is not bool(new), path


@pytest.mark.parametrize("name", ["OPENERS", "NEWEST_KNOWN", "COLUMNS", "CHECKS", "TEXTS"])
def test_the_registries_that_are_named_are_where_the_recipes_say(name: str) -> None:
    """The recipe whose file has the registry is the one that names it or its rows."""
    files = [path for text in RECIPES.values() for path in re.findall(r"^- `([\w./]+)`: ", text, re.MULTILINE)]
    assert any(re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE) for path in files)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages that a newcomer may edit, and a model."""
    for package in ("pipeline", "device_runner"):
        shutil.copytree(ROOT / package, tmp_path / package)  # with what is compiled: to compile all takes seconds
    onnx.save(chain("Relu", "Identity", "Abs", "Relu"), tmp_path / "model.onnx")
    return tmp_path


def edit(path: Path, before: str, new: str) -> None:
    """Put text in front of a line that stands once in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, new + before), encoding="utf-8")


def python(copy: Path, *arguments: str) -> str:
    """Stdout of a Python process that has the copy's packages."""
    return command.python(*arguments, cwd=copy, path=copy, PYTHONSAFEPATH="1").out


def add_provider(copy: Path, facts: str, claims: str) -> None:
    """One folder, and nothing else is changed."""
    folder = copy / "pipeline/providers/mynpu"
    folder.mkdir()
    (folder / "__init__.py").write_text(facts)
    (folder / "claims.py").write_text(claims)


CODE = """
from device_runner.spec import RunOptions
from pipeline.release.app_code import code_for

options = RunOptions(provider="mynpu", provider_options={"mode": "quick"})
print("\\0".join("\\n".join(lines) for lines in code_for("android", options, "m.ort").values()))
"""


def test_the_example_of_a_provider_works(copy: Path) -> None:
    add_provider(copy, *blocks("Add an execution provider"))
    answer = json.loads(python(copy, "-m", "pipeline", "partition", "model.onnx", "--ep", "mynpu", "--json", "-"))
    (model,) = answer["models"]
    assert (model["claimed"], model["nodes"], model["load"]["partitions"]) == (2, 4, 2)
    assert "Identity is not supported by MyNPU" in {one["reason"] for one in model["decisions"]}
    assert "mynpu" in python(copy, "-m", "pipeline", "help", "session-options")
    assert "mynpu" in python(copy, "-m", "pipeline", "partition", "--help")
    rows = python(copy, "-m", "pipeline", "check", "model.onnx").splitlines()
    assert [line.split() for line in rows if line.startswith("MyNPU ")] == [["MyNPU", "2/3", "2", "no"]]
    *_, cpp = python(copy, "-c", CODE).split("\0")
    assert 'options.AppendExecutionProvider("MyNPU", {{"mode", "quick"}});' in cpp


CONFIG = """
name = "quick"
compare = ["mynpu"]
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
    "runs": [f"{lane.device} {lane.way}" for lane in lanes],
    "skipped": [f"{one.device}: {one.text}" for one in skipped if one.run.startswith("mynpu")],
}))
"""


@pytest.mark.long
def test_jobs_take_a_new_provider_with_files_that_are_aware_of_it(copy: Path) -> None:
    facts, claims = blocks("Add an execution provider")
    facts = facts.replace("nhwc=False", 'nhwc=False, java="addMyNpu", min_api_level=33').replace(", aware=False", "")
    add_provider(copy, facts, claims)
    assert 'options.addMyNpu(mapOf("mode" to "quick"))' in python(copy, "-c", CODE)
    schema = json.loads(python(copy, "-m", "pipeline", "schema"))
    assert "mynpu" in schema["$defs"]["Accelerator"]["enum"]
    (copy / "config.toml").write_text(CONFIG)
    plan = json.loads(python(copy, "-c", PLAN))
    assert {"adb:33 basic-fixed/mynpu", "adb:33 extended-fixed-mynpu/mynpu"} <= set(plan["runs"])
    remedy = "use a device with API level 33 or higher, or leave mynpu out"
    assert set(plan["skipped"]) == {f"adb:32: API 32: MyNPU needs 33; {remedy}"}
    python(copy, "-m", "pipeline", "run", "config.toml", "--convert-only", "--output", "out")
    assert (copy / "out" / "artifacts" / "model.extended-fixed-mynpu.ort").is_file()
    assert "| model | extended-fixed-mynpu |" in (copy / "out" / "report.md").read_text()


SPACE = """
from device_runner.spec import RunOptions
from pipeline.campaign.run_options import options_name, run_options
from pipeline.config import RunConfig
from pipeline.features.tune.space import ORT_DEFAULTS
from pipeline.release.app_code import code_for

options = run_options(RunConfig(flush_denormals=(False, True)))
print([options_name(row) for row in options], ORT_DEFAULTS["flush_denormals"])
print(code_for("android", options[1], "m.ort")["Kotlin"])
"""


def test_the_example_of_a_session_option_works(copy: Path) -> None:
    (key,) = blocks("Add a session option")
    edit(copy / "pipeline/config/tables.py", "    session_config: dict[str, OneOrMore[str]] = {}\n", key)
    names, code = python(copy, "-c", SPACE).splitlines()
    assert names == "['cpu', 'cpu+flush_denormals=on'] off"
    assert 'addConfigEntry("session.set_denormal_as_zero", "1")' in code
    assert "--flush-denormals on,off" in python(copy, "-m", "pipeline", "help", "session-options")
    words = ("--flush-denormals", "on", "--min-runs", "1", "--min-seconds", "0.01", "--rounds", "1")
    assert "cpu+flush_denormals=on" in python(copy, "-m", "pipeline", "perf", "model.onnx", *words)


@pytest.fixture
def with_pass(copy: Path) -> Path:
    """The copy with the pass of the example."""
    (module,) = blocks("Add a pass")
    (copy / "pipeline/passes/single/drop_identity.py").write_text(module)
    return copy


PAGES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import make_reference
print(json.dumps({path.name: text for path, text in make_reference.pages().items()}))
"""


def test_the_example_of_a_pass_works(with_pass: Path) -> None:
    copy = with_pass
    assert "drop-identity" in python(copy, "-m", "pipeline", "transform", "--list")
    transform = ("-m", "pipeline", "transform", "model.onnx", "out.onnx", "--do", "drop-identity:most=3")
    assert "drop-identity:most=3" in python(copy, *transform)
    assert [node.op_type for node in onnx.load(copy / "out.onnx").graph.node] == ["Relu", "Abs", "Relu"]
    shutil.copytree(ROOT / "docs", copy / "docs")
    pages: dict[str, str] = json.loads(python(copy, "-c", PAGES, str(copy / "docs")))
    assert "## `drop-identity`\n\nTake Identity nodes out. Outputs: exact.\n" in pages["passes.md"]
    assert "| `most=1000` | At most so many nodes. |" in pages["passes.md"]
    assert "drop-identity" in json.loads(pages["config.schema.json"])["$defs"]["Step"]["properties"]["do"]["enum"]


@pytest.mark.long
def test_a_job_plans_a_new_pass_and_reports_where_its_model_comes_from(with_pass: Path) -> None:
    (with_pass / "config.toml").write_text(
        'name = "shorter"\n[[models]]\npath = "model.onnx"\n[[models.transforms]]\ndo = "drop-identity"\n'
        'options = { most = 3 }\n[[targets]]\nname = "phone"\nplatform = "android"\n'
    )
    python(with_pass, "-m", "pipeline", "run", "config.toml", "--convert-only", "--output", "out")
    (manifest,) = (with_pass / "out").rglob("manifest.json")
    for path in (with_pass / "out/results.json", with_pass / "out/report.md", manifest):
        assert "drop-identity:most=3" in path.read_text(), path


def test_the_example_of_a_feature_works(copy: Path) -> None:
    module, row, test = blocks("Add a feature")
    folder = copy / "pipeline/features/largest"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Shows the largest constant tensor."""\n')
    (folder / "command.py").write_text(module)
    edit(copy / "pipeline/cli/main.py", '        "partition": (', row)
    assert "my.onnx" in python(copy, "-m", "pipeline", "largest", "--help")
    assert "Show the largest" in python(copy, "-m", "pipeline", "help", "commands")
    tensor = onnx.helper.make_tensor("weights", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    model = onnx.load(copy / "model.onnx")
    model.graph.initializer.append(tensor)
    onnx.save(model, copy / "model.onnx")
    assert python(copy, "-m", "pipeline", "largest", "model.onnx").startswith("weights: ")
    assert json.loads(python(copy, "-m", "pipeline", "largest", "model.onnx", "--json", "-"))["name"] == "weights"
    (copy / "tests/features/largest").mkdir(parents=True)
    for file in ("__init__.py", "command.py"):
        shutil.copy(ROOT / "tests" / file, copy / "tests")
    shutil.copytree(ROOT / "build_configs/examples/mnist", copy / "build_configs/examples/mnist")
    (copy / "tests/features/largest/test_largest.py").write_text(test)
    assert "1 passed" in python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")


def test_the_example_of_a_check_works(copy: Path) -> None:
    function, row = blocks("Add a check to the doctor")
    checks = copy / "pipeline/features/doctor/checks.py"
    edit(checks, "\n\nCHECKS = (", f"\n\n{function}")
    edit(checks, ')  # fmt: skip\n"""Every check,', row)
    assert "fast-math" in python(copy, "-m", "pipeline", "doctor", "--list")


def test_the_example_of_an_error_cause_works(copy: Path) -> None:
    (row,) = blocks("Add a cause of errors")
    failures = copy / "device_runner/failures.py"
    failures.write_text(failures.read_text().replace("\nTEXTS = (\n", f"\nTEXTS = (\n{row}", 1))
    script = """
from device_runner.failures import explain
from device_runner.result import Failure, FailureKind
found = explain(Failure(code=FailureKind.RUN_ERROR, what="MyNPU: out of scratch memory (4 MB)"))
print(found.code.value, found.why)
"""
    expected = "out-of-memory the model needs more of the accelerator's memory than there is"
    assert python(copy, "-c", script).strip().replace("_", "-") == expected


def test_the_example_of_a_column_works(copy: Path) -> None:
    (column,) = blocks("Add a column to the report")
    edit(copy / "pipeline/report/layout.py", "}\n\nWORDS = (", column)
    script = """
from types import SimpleNamespace
from pipeline.report.layout import COLUMNS
from pipeline.report.model import Row
head, text = list(COLUMNS.items())[-1]
print(head, text(SimpleNamespace(**dict.fromkeys(Row.__struct_fields__, 7))))
"""
    assert python(copy, "-c", script).strip() == "Rounds 7"
