"""Generates docs/reference/ and the JSON schemas from the code; a test holds that they are current.

python docs/make_reference.py [--check]
"""

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))  # the code of this checkout, whichever one an editable installation is of

import click
import msgspec

from device_runner.result import RunResult
from device_runner.spec import RunSpec
from pipeline.advice.fitness import FitDocument
from pipeline.campaign.tuned import TuneReport
from pipeline.cli.command import FULL, TOPICS
from pipeline.cli.main import COMMANDS, cli, load
from pipeline.cli.transform import option_lines
from pipeline.config import TABLES, Table, config_schema, key_texts
from pipeline.core.errors import ExitCode
from pipeline.core.json_schema import document_schema
from pipeline.library.difference import LibraryDiff
from pipeline.partition.answer import PartitionDocument
from pipeline.passes.registry import PASSES
from pipeline.report.model import schema as results_schema

MADE = "<!-- Made by docs/make_reference.py from the code: change that. -->\n\n"
EXIT_TEXTS = {
    ExitCode.DONE: "done",
    ExitCode.SOME_FAILED: "some models or runs failed; the others are done",
    ExitCode.USAGE: "the command line or the config is wrong; nothing was done",
    ExitCode.MISSING: "something is missing on this computer (a full or read-only disk counts), or no device is ready",
    ExitCode.CHECK_FAILED: "a check failed: outputs, coverage, operators, budget, regression, a changed bundle",
    ExitCode.TIMED_OUT: "`lab wait`: the time was over before the campaigns had ended",
    ExitCode.INTERRUPTED: "interrupted",
}


def command_help(command: click.Command, path: str) -> Iterator[str]:
    """The help of a command and of its subcommands, as Markdown."""
    context = click.Context(
        command, info_name=path, terminal_width=100, max_content_width=100, help_option_names=["-h", "--help"]
    )
    context.meta[FULL] = True
    yield f"## `{path}`\n\n```text\n{command.get_help(context)}\n```\n\n"
    if isinstance(command, click.Group) and command is not cli:
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand:
                yield from command_help(subcommand, f"{path} {name}")


def commands_page() -> str:
    """Every command with its help, and the exit codes."""
    parts = [
        MADE,
        "# Commands\n\n`python -m pipeline` is the same as `ort-mobile`.\n\n",
        *command_help(cli, "ort-mobile"),
    ]
    for topic, write in TOPICS.items():
        formatter = click.HelpFormatter(width=98)
        write(formatter)
        parts.append(f"## `ort-mobile help {topic}`\n\n```text\n{formatter.getvalue().rstrip()}\n```\n\n")
    for name, (place, _) in COMMANDS.items():
        parts += command_help(load(place), f"ort-mobile {name}")
    parts.append("## Exit codes\n\n| code | meaning |\n| --- | --- |\n")
    parts += [f"| {code.value} | {text} |\n" for code, text in EXIT_TEXTS.items()]
    return "".join(parts)


def type_text(schema: dict[str, Any]) -> str:
    """What a key takes, in a few words, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(type_text(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "$ref" in schema:
        return f"see {schema['$ref'].rpartition('/')[2]}"
    if schema.get("type") == "array":
        return f"list of {type_text(schema.get('items') or schema['prefixItems'][0])}"
    if schema.get("type") == "object":
        return f"table of {type_text(schema.get('additionalProperties', {'type': 'any'}))}"
    return str(schema.get("type", "any"))


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """A key's default as TOML would have it."""
    if field.required:
        return "required"
    value = msgspec.to_builtins(field.default if field.default is not msgspec.NODEFAULT else field.default_factory())  # type: ignore[operator,misc] # exactly one of the two is set
    return "" if value is None or isinstance(value, dict) else f"`{json.dumps(value)}`"


def table_page(table: type[Table], heading: str) -> str:
    """One table of the config: its keys, types, defaults, meanings."""
    properties = config_schema()["$defs"][table.__name__]["properties"]
    texts = key_texts(table)
    rows = [
        f"| `{key}` | {type_text(properties[key])} | {default_text(field)} | {texts[key]} |\n"
        for field in msgspec.structs.fields(table)
        for key in [field.encode_name]
    ]
    head = f"## {heading}\n\n{(table.__doc__ or '').strip()}\n\n"
    return head + "| key | takes | default | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows) + "\n"


CONFIG_INTRO = """# Config files

TOML; unknown keys are errors. Paths are relative to the file. `ort-mobile init MODEL` writes one to start from, and
`docs/config.schema.json` lets editors complete and check it.

"""


def config_page() -> str:
    """Every key of a config file."""
    return MADE + CONFIG_INTRO + "".join(table_page(table, heading) for heading, table in TABLES.items())


PASSES_INTRO = """# Passes

Changes of a model, for `ort-mobile transform --do NAME:option=value`, in the order of `ort-mobile transform --list`.
The result is compared with the model before it: **exact** outputs are equal, **rounding** ones equal but for rounding,
**lossy** ones have another precision, and with **interface** inputs or outputs are others.

"""


def passes_page() -> str:
    """Every pass with its options."""
    parts = [MADE, PASSES_INTRO]
    for one in PASSES.values():
        needs = ["calibration data"] * one.needs_data + [f"the extra `{one.extra}`"] * bool(one.extra)
        parts.append(f"## `{one.name}`\n\n{one.title} Outputs: {one.effect.value}.")
        parts.append(f" Needs {' and '.join(needs)}.\n\n" if needs else "\n\n")
        if lines := option_lines(one):
            rows = (f"| `{option}` | {text} |\n" for option, text in lines)
            parts.append("| option and default | meaning |\n| --- | --- |\n" + "".join(rows) + "\n")
    return "".join(parts).rstrip("\n") + "\n"


def schema_page(kind: type[msgspec.Struct], description: str) -> str:
    """The JSON schema of one document, from its type."""
    return json.dumps(document_schema(kind, kind.__name__, description), indent=2) + "\n"


SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "run-spec": (RunSpec, "Everything that one measured run needs."),
    "run-result": (RunResult, "Everything that one run gave. Times in nanoseconds."),
    "check": (FitDocument, "What `ort-mobile check --json` writes."),
    "partition": (PartitionDocument, "What `ort-mobile partition --json` writes for one provider."),
    "library-diff": (LibraryDiff, "What `ort-mobile library diff --json` writes."),
    "tune": (TuneReport, "tune.json of a search."),
}
"""JSON schemas of the engine by the name of their file: the type, and what has such a document."""


def all_schemas() -> dict[str, tuple[type[msgspec.Struct], str]]:
    """Those of the engine and of each feature with a module `schemas`."""
    found = dict(SCHEMAS)
    for feature in sorted(path.parent.name for path in (DOCS.parent / "pipeline/features").glob("*/schemas.py")):
        found |= importlib.import_module(f"pipeline.features.{feature}.schemas").SCHEMAS
    return found


QUESTIONS = (
    ("How much of a model do NNAPI, CoreML and XNNPACK take, and is one worth using?", "check my.onnx --json -"),
    ("Which nodes does a provider not take, and why?", "partition my.onnx --ep nnapi --json -"),
    ("What would make it take more?", "partition my.onnx --ep nnapi --advise --json -"),
    ("Stop a build when a model got worse", "check my.onnx --fail-on 'coverage<0.1' --fail-on refused:Resize"),
    ("Which changes of a model are there?", "transform --list"),
    (
        "Convert to ORT format, and compare the outputs",
        "convert my.onnx --output out --level all --style fixed --check --json -",
    ),
    ("Which operators must a reduced build have?", "op-config create out"),
    ("Are those of a config enough?", "op-config check out/required_operators.config out --json -"),
    ("How fast is a file here?", "perf out/my.all-fixed.ort --rounds 1 --min-runs 1 --json -"),
    ("Write a config for the whole job", "init my.onnx --output my.toml"),
    ("Convert, check, choose and bundle", "run my.toml --convert-only --output output/my"),
    ("Is a bundle whole?", "bundle verify output/my/bundle --json -"),
    ("What of an app breaks on phones?", "app app.aar --json -"),
    ("What does the next library change?", "library diff old.so new.so --json -"),
    ("What is a library?", "library show new.so --json -"),
    ("Which libraries are here, and which can be had?", "library list --json -"),
)
"""What somebody wants to know, and the command that answers; a test runs all."""

AGENTS_INTRO = """# For programs that drive ort-mobile

One page for scripts and coding assistants. Every command of the first table runs without a phone and without a network,
and tests run them as they stand here. `docs/reference/commands.md` has all options.

- `--json -` writes one JSON object with a `version` to stdout and nothing else there; messages are on stderr.
- Decide by the exit code and by codes in the JSON (`rule`, `code`, `kind`), never by the words of a message.
- An error has four parts on stderr: `error:`, `where:`, `why:`, `remedy:`. The remedy is what to do next.
- No command reads from a terminal. Nothing is contacted but by `library get` and by devices that are named.
- Paths in results are relative to the current folder, as they were given.

"""


def agents_page() -> str:
    """What to run for which question, exit codes, schemas, and what needs more than this computer."""
    rows = "".join(f"| {question} | `ort-mobile {line}` |\n" for question, line in QUESTIONS)
    codes = "".join(f"| {int(code)} | {text} |\n" for code, text in EXIT_TEXTS.items())
    schemas = "".join(
        f"| [{name}.schema.json]({name}.schema.json) | {text} |\n" for name, (_, text) in all_schemas().items()
    )
    needs = (
        ("a phone by adb", "devices --json -", "is it ready? then `--device adb:SERIAL` of run, perf, tune and gate"),
        ("the Android library", "library get android:1.29.0", "then `prove output/my/bundle --library android:1.29.0`"),
        (
            "qemu-user",
            "prove output/my/bundle --library app.aar --cpu all",
            "arm64 on this computer, each class of processor",
        ),
        ("two versions", "gate old.ort new.ort --device adb:SERIAL --json -", "exit code 4: the new one is slower"),
    )
    more = "".join(f"| {what} | `ort-mobile {line}` | {text} |\n" for what, line, text in needs)
    return (
        f"{MADE}{AGENTS_INTRO}## What to run\n\n| question | command |\n| --- | --- |\n{rows}\n"
        f"## Exit codes\n\n| code | meaning |\n| --- | --- |\n{codes}\n"
        f"## Documents\n\n| schema | document |\n| --- | --- |\n{schemas}"
        "| [config.schema.json](config.schema.json) | The TOML file of `ort-mobile run`. |\n"
        "| [results.schema.json](results.schema.json) | results.json of a run. |\n\n"
        f"## With more than this computer\n\n| needs | command | what then |\n| --- | --- | --- |\n{more}"
    )


def llms_text() -> str:
    """The index of the docs for language models (llmstxt.org): a title, a line, links with what is behind them."""
    titles = {
        path.name: next(line for line in path.read_text("utf-8").splitlines() if line.startswith("# "))
        for path in sorted(DOCS.glob("*.md"))
    }
    links = "".join(
        f"- [{title.removeprefix('# ')}](docs/{name})\n" for name, title in titles.items() if name != "for-agents.md"
    )
    return (
        "# ort-mobile\n\n> Turns an ONNX model into an Android and iOS release, tested with the exact files and "
        "library that ship: convert, check, partition, measure, bundle, prove.\n\n"
        "- [What to run for which question, exit codes, JSON schemas](docs/for-agents.md): begin here\n"
        "- [Every command with its options](docs/reference/commands.md)\n\n"
        f"## Docs\n\n{links}"
    )


def guides_page() -> str:
    """What ONNX Runtime's guides tell their readers, with the command and the test, from docs/guides.toml."""
    rows = tomllib.loads((DOCS / "guides.toml").read_text(encoding="utf-8"))["rows"]
    works = sum("command" in row for row in rows)
    parts = [
        MADE.replace("from the code", "from docs/guides.toml"),
        "# ONNX Runtime's performance guides, sentence by sentence\n\n",
        "What they tell their readers to do, the command, its test, and the part of the real thing that this runs on: ",
        f"{works} of {len(rows)} work.\n",
    ]
    for guide in dict.fromkeys(row["guide"] for row in rows):
        parts.append(f"\n## {guide}\n\n| told | command | test | on |\n| --- | --- | --- | --- |\n")
        for row in rows:
            if row["guide"] == guide:
                done = f"`{row['command']}`" if "command" in row else row["why"]
                name = row.get("test", "").partition("::")
                shown = f"[{name[2]}](../{name[0]})" if name[2] else ""
                parts.append(f"| {row['told']} | {done} | {shown} | {row.get('part', '')} |\n")
    return "".join(parts)


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    return {
        DOCS / "reference" / "commands.md": commands_page(),
        DOCS / "reference" / "config.md": config_page(),
        DOCS / "reference" / "passes.md": passes_page(),
        DOCS / "guides.md": guides_page(),
        DOCS / "config.schema.json": json.dumps(config_schema(tuple(PASSES)), indent=2) + "\n",
        DOCS / "results.schema.json": json.dumps(results_schema(), indent=2) + "\n",
        **{DOCS / f"{name}.schema.json": schema_page(kind, text) for name, (kind, text) in all_schemas().items()},
        DOCS / "for-agents.md": agents_page(),
        DOCS.parent / "llms.txt": llms_text(),
    }


MADE_ELSEWHERE = {"nnapi-calls.md", "precisions.md"}
"""Pages of reference/ that other programs here write."""


def main() -> int:
    """Write the pages, or with --check say which are not current."""
    made = pages()
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    left = [path for path in (*DOCS.glob("*.schema.json"), *(DOCS / "reference").glob("*.md")) if path not in made]
    left = [path for path in left if path.name not in MADE_ELSEWHERE]
    if "--check" in sys.argv:
        for path in (*stale, *left):
            print(f"{path.relative_to(DOCS.parent)} is not current: run `nox -s reference`")
        return 1 if stale or left else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path], encoding="utf-8")
    for path in left:  # what a page was made of is gone
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
