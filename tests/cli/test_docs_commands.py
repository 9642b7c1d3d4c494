"""Every command of README and docs runs as it stands, or is in a table with the reason why not here.

Whatever else the project writes of its commands and config keys (remedies, texts of the program, CI recipes, consoles
and prose of the docs, the README of a bundle) is read by the parser of the command line, or by the config's reader.
"""

import ast
import functools
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import pytest
from onnx import TensorProto

from pipeline.cli.main import COMMANDS as NAMES
from pipeline.config import read_config
from pipeline.core.errors import ConfigError
from tests.cli.test_help import parse
from tests.command import leaves, ort_mobile
from tests.onnx_samples import conv_bn, linear, make, parsed_nodes, save, value
from tests.passes.quantized_models import write_digits

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "build_configs/builds/README.md",
    *sorted(
        page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "facts" and page.name != "recipes.md"
    ),
)

ELSEWHERE = {
    r"nox -s pipeline$|nox -s tests$": "installs and runs for minutes: .ci/run does it in a fresh clone",
    r"nox -s": "a session that calls a command below; tests/test_project.py holds sessions and commands together",
    r"adb:|devices SERIAL": "needs a phone: tests/device runs these options against a real adbd",
    r"app\.aar|onnxruntime-(android|release)\.aar|-host:|--(library|reference) (android|wheel):":
        "needs an Android library: tests/android_host",
    r"--provider qnn": "needs the package onnxruntime-qnn: tests/device_runner/test_plugins.py",
    r"library get|library show|library diff": "needs the network or a package: tests/library",
    r"ort-mobile app ": "needs an app: tests/features/app",
    r"#previous|--run-a": "compares campaigns that measured: tests/features/pairs/test_comparison.py",
    r"ort-mobile run my\.toml$": "runs a whole job: tests/job/test_job.py",
    r"ort-mobile doctor my": "measures for minutes: tests/features/doctor/test_doctor.py",
    r"ort-mobile gate base/bundle": "measures two versions in turn: tests/features/pairs/test_gate_command.py",
    r"ort-mobile (export|collect) |package/run": "converts and measures: tests/features/away",
    r"ort-mobile tune ": "searches for minutes: tests/features/tune/test_command.py",
    r"build doctor|build run": "needs a source tree of ONNX Runtime and its tools: tests/ort_build",
    r"^pip install|vulkan=": "installs, or needs a software GPU: tests/android_host",
    r"^apt-get install": "changes the computer: nox -s android_host_tests installs the same packages",
    r"completion fish >": "redirects into the user's own folder",
}  # fmt: skip
"""Commands that are not run here, by pattern, and where they are, or why not."""

CODES = {r"--max-drop 0\.01": 4, r"new-model\.ort": 4, r"--from-log": 4, r"compare output/my/bundle": 1}
"""Exit codes other than 0, by pattern: what the text around these commands says; nothing was measured to compare."""


def blocks(page: Path) -> Iterator[str]:
    yield from re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def command_lines() -> Iterator[str]:
    """Commands without comments and with continued lines joined."""
    for page in PAGES:
        for block in blocks(page):
            for line in block.replace("\\\n", " ").splitlines():
                if command := re.sub(r"(^|\s)#.*", "", line).strip():
                    yield command


COMMANDS = list(dict.fromkeys(command_lines()))
MEASURING = re.compile(r"ort-mobile run (?!.*--convert-only)|.* --precision ")
AT_NIGHT = "ort-mobile run --model my.onnx"
"""Measures as long as the defaults say; in each run tests/job/test_job.py converts without a config."""


def elsewhere(command: str) -> str:
    return next((reason for pattern, reason in ELSEWHERE.items() if re.search(pattern, command)), "")


def open_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a dynamic batch, as most exporters write it."""
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def speech() -> onnx.ModelProto:
    """A model with the inputs that the guide's example of values names: tokens and a sample rate."""
    nodes = parsed_nodes("y = Add (tokens, sr)")
    takes = [value("tokens", [1, "sequence"], TensorProto.INT64), value("sr", [], TensorProto.INT64)]
    return make(nodes, takes, [value("y", [1, "sequence"], TensorProto.INT64)], [])


@pytest.fixture(scope="session")
def documented(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the docs name, in a folder."""
    folder = tmp_path_factory.mktemp("documented") / "clone"
    shutil.copytree(workplace, folder)
    (folder / "my.onnx").unlink()
    save(open_batch(conv_bn(8)), folder / "my.onnx")
    save(linear(8), folder / "new.onnx")
    artifact = folder / "out/my.basic-fixed.ort"
    shutil.copy(ROOT / "build_configs/examples/mnist/mnist.onnx", folder / "int8.onnx")
    for name in ("a.ort", "b.ort", "my.ort"):
        shutil.copy(artifact, folder / name)
    ort_mobile("convert", "new.onnx", "--output", "new", "--level", "basic", cwd=folder)
    shutil.copy(folder / "new/new.basic-fixed.ort", folder / "new-model.ort")
    for name in ("required_operators", "a", "b", "old", "new", "missing"):
        shutil.copy(folder / "out/required_operators_and_types.config", folder / f"{name}.config")
    for name in ("logcat.txt", "device.log"):
        (folder / name).write_text("Failed to find kernel for Tan(7) (node:'t' ep:'CPUExecutionProvider').\n")
    shutil.copytree(ROOT / "build_configs", folder / "build_configs")
    write_digits(folder / "digits")
    return folder


def expanded(command: str, folder: Path) -> list[str]:
    """The words of a command as a shell gives them: quotes removed, patterns of files filled in."""
    words = []
    for word in shlex.split(command):
        found = (
            [str(path.relative_to(folder)) for path in folder.glob(word)] if "*" in word and "'" not in command else []
        )
        words += sorted(found) or [word]
    return words


def test_there_are_commands_and_every_reason_is_needed() -> None:
    assert len(COMMANDS) > 50
    for pattern in ELSEWHERE:
        assert pattern == r"completion fish >" or any(re.search(pattern, command) for command in COMMANDS), pattern


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_blocks_of_their_own_kind(page: Path) -> None:
    """A command in a block of another kind would be run by nobody."""
    text = re.sub(
        r"^```(sh|console|text)\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert not re.findall(rf"^(?: {{4}})?ort-mobile (?:{'|'.join(NAMES)})\b.*", text, re.MULTILINE)


@pytest.mark.usefixtures("no_adb")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            command,
            marks=[pytest.mark.long] * bool(MEASURING.match(command)) + [pytest.mark.nightly] * (command == AT_NIGHT),
        )
        for command in COMMANDS
    ],
)
def test_the_command_runs(command: str, documented: Path, tmp_path: Path) -> None:
    words = expanded(command, documented)
    if words[0] == "ort-mobile":
        parse([word for word in words[1:] if word not in (">", "|")])
    if elsewhere(command):
        return
    assert words[0] == "ort-mobile", "a program that no reason is given for"
    folder = tmp_path / "clone"
    shutil.copytree(documented, folder, copy_function=os.link)
    expected = next((code for pattern, code in CODES.items() if re.search(pattern, command)), 0)
    if command.startswith(("ort-mobile init", "ort-mobile run my.toml")):
        (folder / "my.toml").unlink()
        ort_mobile("init", "my.onnx", cwd=folder)
        config = folder / "my.toml"
        if "init" in command:
            config.unlink()
        else:
            config.write_text(
                re.sub("^min_seconds = .*", "min_seconds = 0.001", config.read_text(), flags=re.MULTILINE)
            )
    if "sequence=" in command:
        (folder / "my.onnx").unlink()
        save(speech(), folder / "my.onnx")
    ort_mobile(*words[1:], cwd=folder, code=expected)


CODE = tuple(path for folder in ("pipeline", "device_runner") for path in sorted((ROOT / folder).rglob("*.py")))
RECIPES = tuple(
    path for path in sorted((ROOT / "build_configs").rglob("*"))
    if path.is_file() and path.suffix in ("", ".yml", ".toml", ".sql", ".service")
)  # fmt: skip
TEMPLATES = tuple(path for path in sorted((ROOT / "pipeline").rglob("templates/*")) if path.suffix in (".html", ".js"))
OTHER_PAGES = (ROOT / "CONTRIBUTING.md", ROOT / "docs/recipes.md", *sorted((ROOT / "build_configs").rglob("*.md")))
HOLE = "HOLE"
"""Stands for what a text gets when it is used."""
WRITTEN = re.compile(rf"(?<![\w=-])ort-mobile\s+((?:{'|'.join(sorted(NAMES))})\b[^`\n;<]*)")
ENDS = re.compile(r" [>|#]| && |, (?:or|and|which|in) |\)[ ,.\"]| \(|: |[.,:)]$|\"")
"""What follows a command where a text does not mark its end."""
FREE = re.compile(r"[A-Z][A-Z_]*\d?$|=[A-Z]+$|…|\.\.\.|//|\[OPTIONS\]|app\.aar|libonnxruntime\.so")
"""Words that stand for a value, and files that are not here."""


@functools.cache
def texts(path: Path) -> tuple[tuple[str, bool], ...]:
    """The strings of a Python file with holes for what is computed, and whether each tells what to do."""
    source = path.read_text(encoding="utf-8")
    return tuple(_texts(ast.parse(source))) if "remedy" in source or "ort-mobile" in source else ()


def _texts(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    remedies = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "remedy"
        for part in ast.walk(node)
    }  # fmt: skip
    remedies |= {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "remedy" for target in node.targets)
        for part in ast.walk(node.value)
    }  # fmt: skip
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.GeneratorExp)):
        if any(isinstance(node, ast.keyword) and node.arg == "remedy" for node in ast.walk(table.elt)):
            rows = (node for node in ast.walk(table.generators[0].iter) if isinstance(node, ast.Tuple) and node.elts)
            remedies |= {id(row.elts[-1]) for row in rows}  # the remedy of a table's row stands last
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
            yield "".join(map(str, values)), id(node) in remedies
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value, id(node) in remedies


def written_commands() -> Iterator[tuple[str, str]]:
    """Where a command is written, and its line without `ort-mobile`."""
    for path in (*CODE, *RECIPES, *TEMPLATES, *PAGES, *OTHER_PAGES):
        found = [text for text, _ in texts(path)] if path in CODE else [path.read_text(encoding="utf-8")]
        for text in found:
            text = re.sub(r" *\\\n", " ", text)
            for match in WRITTEN.finditer(text):
                marked = text[match.end() :].startswith("`")
                yield str(path.relative_to(ROOT)), match[1] if marked else ENDS.split(match[1])[0].strip()


def objection(line: str) -> str:
    """Why the command line would not take a line; "" where it does, whatever the free words in it stand for."""
    try:
        words = shlex.split(re.sub(r"[{][\w.]*[}]|[$][{]?\w+[}]?", HOLE, line.replace("\\`", "")))
    except ValueError:
        return ""  # an apostrophe of prose behind a command that has no end
    words = [word for word in words if word not in ("…", "...", "\\")]
    try:
        parse(words)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return ""  # a text names the command and does not spell it out
    except click.NoSuchOption as error:
        return error.format_message()
    except click.BadOptionUsage as error:
        return "" if words[-1].startswith("-") else error.format_message()
    except click.UsageError as error:
        prose = not words[-1].startswith("-") and "Got unexpected extra argument" in error.format_message()
        return "" if any(map(FREE.search, words)) or prose else error.format_message()
    return ""


@pytest.mark.long
def test_every_command_that_is_written_anywhere_parses() -> None:
    lines = list(dict.fromkeys(written_commands()))
    assert len(lines) > 300
    assert not [(where, line, why) for where, line in lines if (why := objection(line))]


def options_of(line: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", line))


@pytest.mark.long
def test_every_option_that_a_remedy_names_exists() -> None:
    known = {
        name for _, command in leaves() for param in command.params for name in (*param.opts, *param.secondary_opts)
    }
    foreign = {"--recursive", "--branch", "--upgrade", "--use"}  # of git, pip, and a script of ONNX Runtime (--use_...)
    found = {(str(path), name) for path in CODE for text, remedy in texts(path) if remedy for name in options_of(text)}
    assert not [(path, name) for path, name in found if name not in known | foreign | {"--debug"}]


@pytest.mark.long
def test_no_text_installs_a_name_that_is_on_no_index() -> None:
    """Whoever registered it there would be installed, in CI beside the signing key."""
    files = (*CODE, *RECIPES, *PAGES, *OTHER_PAGES)
    assert not [
        (str(path.relative_to(ROOT)), line)
        for path in files for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"ort-mobile-pipeline\[\w+\](?! @ git)", line)
    ]  # fmt: skip


LINES = re.compile(r"(?<![\w.])([a-z_]+) = (\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}+|\d[\d.]*|true|false)")
TABLES = ("", "[[targets]]", "[[models]]", "[[runs]]", "[variants]", "[measure]", "[accuracy]", "[tune]", "[build]",
          "[release]", "[release.apple]", "[bundle]", "[output]", "[store]", "[models.preprocess]",
          '[[features]]\nname = "f"\n[[features.flow]]\nrun = "m"',
          '[[features]]\nname = "f"\n[[features.flow]]\nrun = "m"\n[features.flow.inputs]')  # fmt: skip
CONFIG = """\
{top}
name = "m"
[[models]]
path = "m.onnx"
{models}
[[targets]]
name = "t"
{targets}
{other}
"""


def takes(folder: Path, line: str) -> bool:
    """Whether a config takes a line in some table."""
    for table, platform in itertools.product(TABLES, ("android", "ios")):
        place = table.strip("[]") or "top"
        places = {"top": "", "models": "", "targets": f'platform = "{platform}"', "other": ""}
        if place not in places:
            places["other"] = f"{table}\n{line}"
        elif line.startswith("platform"):
            places[place] = line
        else:
            places[place] += f"\n{line}"
        (folder / "c.toml").write_text(CONFIG.format(**places))
        try:
            read_config(folder / "c.toml")
        except ConfigError:
            continue
        return True
    return False


@pytest.mark.long
def test_every_config_line_of_a_remedy_is_taken_by_a_config(tmp_path: Path) -> None:
    lines = {
        (str(path.relative_to(ROOT)), match[0])
        for path in CODE for text, remedy in texts(path) if remedy for match in LINES.finditer(text)
    }  # fmt: skip
    assert len(lines) > 10
    filled = ("1", "1.24", "android", "batch = 1")
    assert not [
        (path, line)
        for path, line in sorted(lines)
        if not any(takes(tmp_path, line.replace(HOLE, one)) for one in filled)
    ]


@pytest.mark.long
def test_options_that_remedies_about_inputs_name_are_those_of_every_command_with_inputs() -> None:
    """Whatever takes --test-data can meet any of these errors."""
    named = {
        name for path in CODE if path.is_relative_to(ROOT / "pipeline/dataset")
        for text, remedy in texts(path) if remedy for name in options_of(text)
    }  # fmt: skip
    assert {"--dimension", "--test-data", "--input"} <= named
    for command, options in ((name, {opt for param in one.params for opt in param.opts}) for name, one in leaves()):
        if "--test-data" in options and command != "transform":  # its step fixed-dimensions gives sizes
            assert named <= options, command
