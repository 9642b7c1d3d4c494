"""One registry of passes: what a row there adds is found everywhere, without another line of code.

A pass that does not exist is registered in Python processes of their own by a `sitecustomize` module, which workers
import too.
"""

import json
from pathlib import Path

import onnx
import pytest

from tests import command
from tests.partition_samples import chain

ROOT = Path(__file__).resolve().parents[2]

REGISTER = """
from dataclasses import replace
from pipeline.passes import registry
from pipeline.passes.base import Effect, NotApplicable, Options, Pass

class LabelOptions(Options, frozen=True, kw_only=True):
    label: str
    '''What the producer is called.'''
    times: int = 1
    '''How often.'''

def label(model, options, context):
    if model.proto.producer_name == options.label:
        raise NotApplicable("nothing to do", why="it has this label")
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    proto.producer_name = options.label * options.times
    return replace(model, proto=proto)

registry.PASSES["label"] = Pass(
    name="label", title="Put a label on it.", apply=label, effect=Effect.EXACT, options=LabelOptions
)
"""

CONFIG = """
name = "labelled"
[[models]]
path = "model.onnx"
[[models.transforms]]
do = "label"
options = { label = "made here" }
[[targets]]
name = "phone"
platform = "android"
"""

PAGES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import make_reference
print(json.dumps({path.name: text for path, text in make_reference.pages().items()}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, a config, and a pass that is registered in every Python that starts with it."""
    (tmp_path / "sitecustomize.py").write_text(REGISTER)
    (tmp_path / "config.toml").write_text(CONFIG)
    onnx.save(chain("Relu", "Abs", "Relu"), tmp_path / "model.onnx")
    return tmp_path


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    """Stdout of a Python process that has the pass, or stderr where it ends with another code than 0."""
    done = command.python(*arguments, cwd=folder, path=folder, code=code)
    return done.err if code else done.out


def test_the_docs_and_the_schema_of_configs_have_it(folder: Path) -> None:
    pages: dict[str, str] = json.loads(python(folder, "-c", PAGES, str(ROOT / "docs")))
    assert "## `label`\n\nPut a label on it. Outputs: exact.\n" in pages["passes.md"]
    assert "| `times=1` | How often. |" in pages["passes.md"]
    assert "label" in json.loads(pages["config.schema.json"])["$defs"]["Step"]["properties"]["do"]["enum"]


@pytest.mark.long
def test_a_job_plans_it_and_reports_where_it_comes_from(folder: Path) -> None:
    python(folder, "-m", "pipeline", "run", "config.toml", "--convert-only", "--output", "out")
    out = folder / "out"
    texts = {path.name: path.read_text() for path in (out / "results.json", out / "report.md")}
    manifest = json.loads(next(out.rglob("manifest.json")).read_text())
    step = "label:label=made here"
    assert step in texts["results.json"]
    assert step in texts["report.md"]
    assert step in json.dumps(manifest)
