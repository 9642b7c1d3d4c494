"""What the project promises of itself: commands that agree, a current reference, few dependencies, short code."""

import ast
import builtins
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import shape

ROOT = Path(__file__).resolve().parent.parent


def test_readme_and_ci_run_the_same_test_command() -> None:
    (readme,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith("nox -s tests")]
    (ci,) = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.endswith("nox -s tests")]
    assert readme == ci


def test_the_readmes_first_command_runs_the_example() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith("nox -s pipeline")]
    assert len(lines) == 1
    assert (ROOT / "build_configs" / "mnist.toml").is_file()


def test_the_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/make_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_is_made_from_its_own_checkout(tmp_path: Path) -> None:
    """An editable installation is of one checkout, and a second one has another reference."""
    for name in ("docs", "pipeline", "device_runner"):
        shutil.copytree(ROOT / name, tmp_path / name)
    schema = tmp_path / "docs/config.schema.json"
    schema.write_text("{}", "utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / "docs/make_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert str(schema.name) in done.stdout + done.stderr
    assert done.returncode == 1


def test_links_in_the_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_the_guide_can_be_read_in_one_sitting() -> None:
    assert len((ROOT / "docs/guide.md").read_text(encoding="utf-8").split()) <= 6000


def test_a_newcomers_first_page_is_short() -> None:
    assert (ROOT / "CONTRIBUTING.md").stat().st_size <= 6 * 1024


def test_few_dependencies_each_with_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= 11
    assert all(">=" in requirement for requirement in project["dependencies"])


MOST_LINES_OF_A_FUNCTION = 80
LONGER_FUNCTIONS = {
    "pipeline/accuracy/score.py:score": 96,
    "pipeline/check/reference.py:make_reference": 98,
    "pipeline/cli/convert.py:convert": 112,
    "pipeline/convert/engine.py:convert_here": 103,
    "pipeline/features/perf/command.py:perf": 107,
}
"""What is longer, with its lines as the formatter has them: functions only leave this list or get shorter."""

MOST_LINES_OF_A_MODULE = 600
LONGER_MODULES = {
    "pipeline/check/reference.py": 746,
    "pipeline/compat/defects.py": 711,
    "pipeline/compat/rules.py": 617,
    "pipeline/providers/coreml/claims.py": 689,
    "pipeline/providers/nnapi/rules.py": 632,
}
"""What is longer, with its lines: modules only leave this list or get shorter. A provider's rules are one file."""


def test_functions_fit_a_readers_memory() -> None:
    lengths = [
        (f"{path}:{name}", node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in shape.sources()
        for name, node in shape.functions_by_name(path)
    ]
    longer = [
        f"{name}: {length} lines at line {line}, at most {most}: take a step out of it"
        for name, line, length in lengths
        if length > (most := LONGER_FUNCTIONS.get(name, MOST_LINES_OF_A_FUNCTION))
    ]
    assert not longer, "\n".join(longer)
    still = {name for name, _, length in lengths if length > MOST_LINES_OF_A_FUNCTION}
    shorter = [name for name in LONGER_FUNCTIONS if name not in still]
    assert not shorter, f"take these out of LONGER_FUNCTIONS: {shorter}"


def test_modules_fit_a_readers_memory() -> None:
    lengths = {path: shape.lines(path) for path in shape.sources()}
    longer = [
        f"{path}: {length} lines, at most {most}: give what is another noun a file of its own"
        for path, length in lengths.items()
        if length > (most := LONGER_MODULES.get(path, MOST_LINES_OF_A_MODULE))
    ]
    assert not longer, "\n".join(longer)
    shorter = [path for path in LONGER_MODULES if lengths.get(path, 0) <= MOST_LINES_OF_A_MODULE]
    assert not shorter, f"take these out of LONGER_MODULES: {shorter}"


LEAST_LINES_OF_AN_ISLAND = 20
COLLECTIONS = {
    "pipeline/providers/coreml/checks.py": "checks of CoreML's rules, each a row of the table may name",
    "pipeline/providers/qnn/claims.py": "checks of what the NPU computes, by operator",
    "pipeline/passes/rewrites/accelerators.py": "passes, each a row of the registry",
    "pipeline/passes/rewrites/arithmetic.py": "passes, each a row of the registry",
    "pipeline/passes/rewrites/linear.py": "passes, each a row of the registry",
    "pipeline/passes/rewrites/moves.py": "passes, each a row of the registry",
    "pipeline/passes/surgery.py": "passes, each a row of the registry",
}
"""Modules that collect things of one kind, with the kind."""


def test_a_module_is_about_one_thing() -> None:
    """Definitions that use one another are an island; three islands in one module are three modules."""
    islands = {
        path: [island for island in shape.islands(path) if island.lines >= LEAST_LINES_OF_AN_ISLAND]
        for path in shape.sources()
        if path not in COLLECTIONS
    }
    several = {path: found for path, found in islands.items() if len(found) > 2}
    new = [
        f"{path}:{island.line}: {island.lines} lines about {', '.join(island.names[:5])}"
        for path, found in several.items()
        for island in found
    ]
    assert not new, "these islands use nothing of each other: give them modules\n" + "\n".join(new)


WORDS_FOR_ANYTHING = {
    "row": "rows",
    "place": "places",
    "entry": "entries|metadata_props|external_data|scandir",
    "item": r"items\b(?!\()",
    "each": None,
    "one": None,
    "found": None,
    "thing": None,
}
"""Loop variables that say nothing of what they are, with what they may run over: rows of a table are rows."""

ROWS_BY_ANOTHER_NAME = {
    "pipeline/check/ranked_rows.py": 7,
    "pipeline/compat/release_table.py": 4,
    "pipeline/features/tune/space.py": 1,
}
"""Modules with loops over rows of a table, a database or an array that are not called rows; they only get fewer."""


def test_a_loop_variable_says_what_it_is() -> None:
    """`device in devices`, and not `row in devices`: one word for everything makes a reader look for what it is."""
    loops: dict[str, list[str]] = {}
    for path in shape.sources():
        for node in shape.nodes(path):
            if not isinstance(node, ast.For | ast.comprehension):
                continue
            over = ast.unparse(node.iter)
            for name in (name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)):
                allowed = WORDS_FOR_ANYTHING.get(name, "")
                if allowed is None or (allowed and not re.search(allowed, over, re.IGNORECASE)):
                    loops.setdefault(path, []).append(f"{path}:{node.target.lineno}: `for {name} in {over[:60]}`")
    new = [
        f"{line}: name it after what it is"
        for path, lines in loops.items()
        if len(lines) > ROWS_BY_ANOTHER_NAME.get(path, 0)
        for line in lines
    ]
    assert not new, "\n".join(new)
    fewer = {path: len(loops.get(path, [])) for path in ROWS_BY_ANOTHER_NAME}
    assert fewer == ROWS_BY_ANOTHER_NAME, "lower these in ROWS_BY_ANOTHER_NAME"


@pytest.mark.parametrize(
    ("needed", "most"),
    [
        ("pipeline.cli.main, pipeline.cli.bundle, pipeline.release.signature", 56),
        ("pipeline.cli.main, pipeline.features.pairs.command, pipeline.features.pairs.gating", 148),
        ("pipeline.cli.main, pipeline.cli.convert, pipeline.convert.command_job, pipeline.report.conversion", 153),
    ],
    ids=["verify", "gate", "convert"],
)
def test_a_command_loads_few_modules(needed: str, most: int) -> None:
    """A record is read without what made it; files of one noun are more files, and the bounds leave room for them.

    Providers do not count: a new one is a folder, and its facts are among the choices of commands and configs.

    `python -m tests.shape` counts whole commands.
    """
    count = "len({name for name in sys.modules if name.split('.')[0] in ('pipeline', 'device_runner')"
    count += " and not name.startswith('pipeline.providers.')})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {needed}\nprint({count})"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert int(done.stdout) <= most


def test_the_packages_can_be_drawn_on_one_page() -> None:
    """Units: what stands directly in pipeline/, and device_runner as one."""
    units = [path for path in (ROOT / "pipeline").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    names = {path.stem for path in units} - {"__init__", "__main__"} | {"device_runner"}
    assert len(names) <= 22, sorted(names)
    modules = sorted(path.stem for path in units if path.suffix == ".py")
    assert modules == ["__init__", "__main__"], "packages only at the top"


def test_a_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in shape.sources():
        for node in shape.nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def run_time_imports(name: str, module: ast.Module, modules: Container[str]) -> set[str]:
    """The modules of the project that importing this one imports: what stands at its top level."""
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module]
    named = {(node.module or "", f"{node.module}.{alias.name}") for node in imports for alias in node.names}
    return {inner if inner in modules else outer for outer, inner in named if inner in modules or outer in modules} - {
        name
    }


def test_no_import_leads_back_to_where_it_began() -> None:
    modules = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): m for path, m in shape.sources().items()
    }
    graph = {name: run_time_imports(name, module, modules) for name, module in modules.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)  # raises CycleError with the modules


def names_in(path: str) -> set[str]:
    """Every module that the source names: imports anywhere, and in tables (of a feature its commands)."""
    nodes = shape.nodes(path)
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    named = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    named |= {node.module or "" for node in imports}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if "claims_of" in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}:  # imports that of a folder
        texts += [module_name(path) for path in shape.sources() if path.endswith("/claims.py")]
    tables = {f"pipeline.{name.partition(':')[0]}" for name in texts}
    return named | set(texts) | tables | {f"{name}.command" for name in tables}


def test_the_modules_that_a_reader_opens_lead_to_each_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    (lists,) = re.findall(r"^### What to open$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    paths = [re.findall(r"`([\w.]+)`", line) for line in re.findall(r"^- [\w ]+: (.*)$", lists, re.MULTILINE)]
    (counts,) = re.findall(r"^\| modules that a reader opens: [^|]*\| ([\d, ]+) \|", page, re.MULTILINE)
    assert ", ".join(str(len(path)) for path in paths) == counts
    modules = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): names_in(path) for path in shape.sources()
    }
    for path in paths:
        for place, name in enumerate(path):
            earlier = set().union(*(modules[f"pipeline.{before}"] for before in path[:place]))
            assert place == 0 or f"pipeline.{name}" in earlier, f"{name} is named by none of {path[:place]}"


VOCABULARY = frozenset({
    "Array", "Artifact", "CampaignRecord", "Config", "Dataset", "Device", "DeviceFacts", "ElementType", "Finding",
    "LeanModel", "Level", "OptimizationLevel", "OutputCheck", "Outputs", "Place", "Problem", "Progress", "Release",
    "RunOptions", "RunRecord", "RunResult", "RunSpec", "Severity", "SourceModel", "Status", "Store", "Style",
    "TensorFile", "TensorInfo", "Variant",
})  # fmt: skip
"""Types that nearly every room speaks of: they are known without the module in front."""


@cache
def exception_names() -> frozenset[str]:
    """Classes of ours that are raised: an `except` reads better without a module."""
    known = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    known |= {"ClickException"}
    classes = [node for path in shape.sources() for node in shape.nodes(path) if isinstance(node, ast.ClassDef)]
    count = 0
    while count != len(known):
        count = len(known)
        bases = {node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} for node in classes}
        known |= {name for name, names in bases.items() if not known.isdisjoint(names)}
    return frozenset(known)


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room(path: str) -> str:
    """The folder that a module lies in."""
    return path.rpartition("/")[0].replace("/", ".")


def speaks(path: str) -> set[str]:
    """The rooms whose names a module knows: its own; those of what it is written in the words of."""
    return {room(path), *(words for folder, words in WRITTEN_IN.items() if path.startswith(folder))}


WRITTEN_IN = {"pipeline/providers/": "pipeline.partition", "pipeline/passes/single/": "pipeline.passes"}
"""Folders of files that a contributor adds, and the room whose words these are written in."""


def faces(path: str) -> set[str]:
    """What the `__all__` of a package gives on."""
    for node in shape.sources()[path].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def imports_of_ours() -> Iterator[tuple[str, int, str, ast.alias]]:
    """Of each import from the product in the product: path and line, the module that is asked, and what for."""
    modules = {module_name(path) for path in shape.sources()}
    for path in shape.sources():
        for node in shape.nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                yield from ((path, node.lineno, node.module, alias) for alias in node.names)


def test_imports_across_rooms_bring_modules_and_not_names() -> None:
    """`planning.distinct` says whose it is. Names of one's own folder are known, and VOCABULARY everywhere."""
    paths = {module_name(path): path for path in shape.sources()}
    names = [
        f"{path}:{line}: import the module {module} and call {module.rpartition('.')[2]}.{alias.name}"
        for path, line, module, alias in imports_of_ours()
        if f"{module}.{alias.name}" not in paths
        and room(paths[module]) not in speaks(path)
        and alias.name not in VOCABULARY | exception_names() | faces(path)
        and not alias.name.startswith("__")
    ]
    assert names == []


def test_a_module_has_one_name_wherever_it_is_imported() -> None:
    modules = {module_name(path) for path in shape.sources()}
    names: dict[str, dict[str, list[str]]] = {}
    for path, line, module, alias in imports_of_ours():
        if (full := f"{module}.{alias.name}") in modules:
            names.setdefault(full, {}).setdefault(alias.asname or alias.name, []).append(f"{path}:{line}")
    assert {module: places for module, places in names.items() if len(places) > 1} == {}


PROVIDER_NAMES = frozenset({
    "coreml", "coreml-mlprogram", "coreml-nn", "cpu", "cuda", "nnapi", "qnn", "tensorrt", "webgpu", "xnnpack",
})  # fmt: skip
PROVIDER_CONSTANTS = re.compile(r"(?:\w+\.)*(?:NNAPI|XNNPACK|QNN|WEBGPU|CPU|COREML\w*|CUDA)")

COMPARED = {
    "device_runner/profile.py": "ONNX Runtime's name of the CPU in a profile",
    "pipeline/features/imports/frameworks.py": "where PyTorch has a tensor",
    "pipeline/features/prove/calls.py": "the kind of an NNAPI device",
    "pipeline/features/tune/space.py": "the kind of an NNAPI device",
    "pipeline/report/profiles.py": "ONNX Runtime's name of the CPU in a profile",
}
"""Comparisons with a word that is a provider's name, too, or with the one that ONNX Runtime has for it."""


def is_provider_name(node: ast.expr) -> bool:
    """Whether it is the name of a provider, or a collection with one."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_provider_name, node.elts))
    if isinstance(node, ast.Constant):
        return node.value in PROVIDER_NAMES
    return bool(PROVIDER_CONSTANTS.fullmatch(ast.unparse(node)))


def of_a_provider(path: str) -> bool:
    return path.startswith("pipeline/providers/") or path == "device_runner/providers.py"


def test_nothing_but_its_own_folder_compares_the_name_of_a_provider() -> None:
    """Ask for a property of its row: another provider may have it, too, and each can be taken away."""
    compared = {
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path in shape.sources()
        if not of_a_provider(path)
        for node in shape.nodes(path)
        if isinstance(node, ast.Compare) and any(map(is_provider_name, (node.left, *node.comparators)))
    }
    assert {line for line in compared if line.partition(":")[0] not in COMPARED} == set()
    assert set(COMPARED) == {line.partition(":")[0] for line in compared}, "take these out of COMPARED"


def test_nothing_but_its_own_folder_imports_a_provider() -> None:
    assert [
        f"{path}:{line}: {module}"
        for path, line, module, alias in imports_of_ours()
        if (place := f"{module}.{alias.name}".split(".")[:3])[:2] == ["pipeline", "providers"]
        and not path.startswith(f"{'/'.join(place)}/")
    ] == []


def test_the_formatter_is_switched_off_for_tables_alone() -> None:
    """Rows of figures and words, which one reads in columns."""
    marks = {path: (ROOT / path).read_text("utf-8").count("# fmt: skip") for path in shape.sources()}
    assert sum(marks.values()) <= 45, {path: count for path, count in marks.items() if count}


@cache
def sessions() -> dict[str, str]:
    """What `nox -l` lists: names of sessions, without their parameters, and their text."""
    done = subprocess.run([sys.executable, "-m", "nox", "-l"], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(re.findall(r"^[*-] (\w+)(?:\(.*\))?(?: -> (.*))?$", done.stdout, re.MULTILINE))


def test_every_session_is_documented() -> None:
    listed = sessions()
    assert {"pipeline", "tests", "lint", "typecheck", "device_tests", "bench", "oracle"} <= set(listed)
    assert [name for name, text in listed.items() if not text] == []


def test_sessions_named_in_the_docs_and_in_ci_exist() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / ".ci/run")]
    named = {name for text in texts for name in re.findall(r"nox -s (\w+)", text)}
    assert named - set(sessions()) == set()


def test_ci_runs_with_an_empty_home_and_the_users_package_index(tmp_path: Path) -> None:
    """The real script up to its first command, which is one that shows its environment and fails."""
    (tmp_path / "bin").mkdir()
    first = tmp_path / "bin" / "python3"
    first.write_text('#!/bin/sh\nls -A "$HOME" && echo "$HOME" && echo "$PIP_CONFIG_FILE"; exit 7\n')
    first.chmod(0o755)
    (tmp_path / "home/.config/pip").mkdir(parents=True)
    settings = tmp_path / "home/.config/pip/pip.conf"
    settings.touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("PIP_CONFIG_FILE", "XDG_CONFIG_HOME")}
    environment = {**kept, "HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:{os.defpath}"}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    home, pip_settings = done.stdout.splitlines()
    assert Path(home) != tmp_path / "home"
    assert not Path(home).exists(), "the script removes it"
    assert pip_settings == str(settings)


IMPORT_IN_A_TEXT = re.compile(r"\bfrom ((?:pipeline|device_runner|tests)[\w.]*) import (\w+(?:, \w+)*)")
MADE_UP_IMPORTS = {("pipeline", "start"), ("pipeline.passes", "drop_identity")}
"""What tests write themselves before it is imported."""


@cache
def names_of_module(module: str) -> frozenset[str]:
    """What can be imported from a module or package: its definitions, imports and files."""
    folder = ROOT.joinpath(*module.split("."))
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    names = {path.stem for path in folder.glob("*") if path.suffix == ".py" or (path / "__init__.py").is_file()}
    if source.is_file():
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    names |= {alias.asname or alias.name for alias in aliases}
    return frozenset(names)


def test_programs_in_texts_of_tests_import_what_is_there() -> None:
    """Tests of processes start programs that are texts, which no type checker reads."""
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module} has no {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for module, listed in IMPORT_IN_A_TEXT.findall(node.value)
        for name in listed.split(", ")
        if (module, name) not in MADE_UP_IMPORTS and name not in names_of_module(module)
    ]
    assert not missing, "\n".join(missing)
