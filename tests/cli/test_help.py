"""Help: groups of commands and options, examples that exist, `help`, completion."""

import contextlib
import shlex
from pathlib import Path

import click
import msgspec
import pytest

from pipeline.cli.command import REST, SECTIONS, Command, Group, section_of
from pipeline.cli.main import COMMANDS as TABLE
from pipeline.cli.main import FIRST_PAGE, cli
from pipeline.config import app_data, flow
from pipeline.config import tables as config_tables
from tests.command import leaves, ort_mobile

COMMANDS = dict(leaves())


def test_sections_name_options_that_exist() -> None:
    known = {name for command in COMMANDS.values() for param in command.params for name in param.opts} | {"--help"}
    assert frozenset.union(*SECTIONS.values()) <= known


def test_no_command_has_many_options_in_one_section() -> None:
    for name, command in COMMANDS.items():
        counts: dict[str, int] = {}
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                counts[section_of(param)] = counts.get(section_of(param), 0) + 1
        assert counts.get(REST, 0) <= 16, (name, counts)


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_a_command_has_examples_that_its_parser_accepts(path: str) -> None:
    command = COMMANDS[path]
    assert isinstance(command, Command)
    assert command.examples
    for line in command.examples:
        assert f"ort-mobile {path}" in line
        for part in line.removeprefix('eval "$(').removesuffix(')"').split(" && "):
            words = shlex.split(part.partition(" >")[0])
            assert words[0] == "ort-mobile"
            parse(words[1:])


def test_groups_have_examples_that_the_parser_accepts() -> None:
    root = click.Context(cli, info_name="ort-mobile", **cli.context_settings)
    groups = [cli, *(command for name in TABLE if isinstance(command := cli.get_command(root, name), Group))]
    lines = [line for group in groups for line in group.examples]
    assert "ort-mobile help convert" in lines
    for line in lines:
        for part in line.split(" && "):
            parse(shlex.split(part)[1:])


def parse(words: list[str]) -> None:
    """Parse as the command line would; raises click's UsageError."""
    context = click.Context(cli, info_name="ort-mobile", **cli.context_settings)
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        _, child, words = command.resolve_command(context, words)
        assert child is not None
        command, context = child, click.Context(child, parent=context, info_name=child.name)
    with contextlib.suppress(click.exceptions.Exit):  # of options such as --list, which end a command at once
        command.parse_args(context, words)


@pytest.mark.parametrize("words", [("devices",), ("op-config", "check"), ()])
def test_help_of_a_command_is_its_help(words: tuple[str, ...], tmp_path: Path) -> None:
    assert ort_mobile("help", *words, cwd=tmp_path) == ort_mobile(*words, "--help", cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope",), "No such command 'nope'"),
        (("op-config", "chek"), "'chek'"),
        (("run", "x"), "no commands of its own"),
    ],
)
def test_help_of_what_is_no_command(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = ort_mobile("help", *words, cwd=tmp_path, code=2)
    assert message in done.err


@pytest.mark.parametrize(
    ("name", "meant"), [("rn", "run"), ("sign", "bundle sign"), ("verfy", "bundle verify"), ("probe", "build probe")]
)
def test_a_name_that_is_no_command_is_met_with_the_nearest(name: str, meant: str) -> None:
    done = ort_mobile(name, "x", code=2)
    assert f"Did you mean '{meant}'?" in done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, tmp_path: Path) -> None:
    done = ort_mobile("completion", shell, cwd=tmp_path)
    assert "_ORT_MOBILE_COMPLETE" in done.out


def test_completion_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ORT_MOBILE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ort-mobile op-c")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "op-config" in ort_mobile(cwd=tmp_path).out


def test_perf_lists_its_options_in_sections(tmp_path: Path) -> None:
    text = ort_mobile("perf", "--help", cwd=tmp_path).out
    titles = ["Options:", *(f"{title}:" for title in ("Measurement", "State of the phone", "Inputs", "Output",
              "Session options", "Examples"))]  # fmt: skip
    assert [line for line in text.splitlines() if line in titles] == titles


def test_the_first_page_has_twelve_commands_and_names_the_others(tmp_path: Path) -> None:
    text = ort_mobile("--help", cwd=tmp_path).out
    first = [name for section in FIRST_PAGE.values() for name in section]
    assert len(first) == 12
    assert [word for word in first if f"\n  {word} " not in text] == []
    more = text.partition("More commands:\n")[2].partition(":")[0].replace("\n", " ").split()
    assert [*first, *(name.rstrip(",") for name in more)] == list(TABLE)
    every = ort_mobile("help", "commands", cwd=tmp_path).out
    assert [name for name in TABLE if f"\n  {name} " not in every] == []


def test_session_options_stand_on_one_page(tmp_path: Path) -> None:
    page = ort_mobile("help", "session-options", cwd=tmp_path).out
    for name in ("perf", "gate"):
        named = ort_mobile(name, "--help", cwd=tmp_path).out.partition("Session options:\n")[2].partition(": see")[0]
        options = [word.rstrip(",") for word in named.split()]
        assert {f"--{setting.key.replace('_', '-')}" for setting in config_tables.SESSION_SETTINGS} <= {*options}
        assert [option for option in options if f"  {option} " not in page] == []
        assert "--spinning on,off" not in ort_mobile(name, "--help", cwd=tmp_path).out


@pytest.mark.parametrize(("topic", "table"), [("app-data", app_data.Gives), ("features", flow.Feed)])
def test_tables_of_a_config_that_are_hard_to_find_have_a_page(tmp_path: Path, topic: str, table: type) -> None:
    page = ort_mobile("help", topic, cwd=tmp_path).out
    assert [
        field.encode_name for field in msgspec.structs.fields(table) if f"\n  {field.encode_name} " not in page
    ] == []
    assert f"docs/{topic}.md" in page
    assert f"`help {topic}`" in " ".join(ort_mobile("help", "help", cwd=tmp_path).out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_two_options_of_a_command_never_share_a_name_in_the_code(name: str) -> None:
    """click gives the value of one of them to both."""
    names = [param.name for param in COMMANDS[name].params]
    assert len(names) == len(set(names))


LONGEST = {"perf": 92, "convert": 93, "gate": 86, "run": 102, "partition": 71, "tune": 89, "doctor": 61}
"""Lines of `COMMAND --help`: what is new goes among the options that it only names."""


@pytest.mark.parametrize("name", LONGEST)
def test_help_grows_no_longer_and_names_what_it_leaves_out(name: str, tmp_path: Path) -> None:
    text = ort_mobile(name, "--help", cwd=tmp_path).out
    assert len(text.splitlines()) <= LONGEST[name]
    more = text.partition("More options:\n")[2].partition(": see")[0].replace(",", "").split()
    assert more
    full = ort_mobile("help", name, cwd=tmp_path).out
    assert [option for option in more if f"\n  {option} " not in full or f"\n  {option} " in text] == []
