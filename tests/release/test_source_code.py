"""Values in generated source code: every place has an escape, and every escape keeps its place."""

import ast
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

from device_runner.safe_text import visible
from pipeline.core.errors import ConfigError
from pipeline.release import source_code
from pipeline.release.source_code import FILTERS, Code
from tests.command import ROOT
from tests.release.lexers import outside

TEMPLATES = sorted(
    path
    for folder in ("release", "features")
    for path in (ROOT / "pipeline" / folder).rglob("templates/*")
    if path.is_file()
)
ANYWHERE = {"code", "joined", "number", "truth", "identifier", "token", "word", "comment"}
LITERALS = {
    ".java": {"java_text"}, ".swift": {"swift_text"}, ".podspec": {"ruby_text"}, ".md": {"swift_text", "kotlin_text"},
    ".xml": {"xml_text", "xml_attribute"}, ".kts": {"kotlin_text"}, ".pom": {"xml_text"}, "cpp": {"cpp_text"},
    "flutter": {"dart_text"}, "kotlin": {"kotlin_text"}, "maui": {"csharp_text"}, "python": {"python_text"},
    "react-native": {"javascript_text"}, "threads": set(), ".sh": set(),
}  # fmt: skip
"""The escapes of literals that a template may use, by its language."""


def escaped(node: nodes.Node, allowed: set[str], constants: set[str]) -> bool:
    """Whether what an expression gives is a constant of the template or went through one of these filters."""
    if isinstance(node, nodes.CondExpr):
        return all(escaped(part, allowed, constants) for part in (node.expr1, node.expr2) if part)
    if isinstance(node, nodes.Name):
        return node.name in constants
    return isinstance(node, nodes.Const | nodes.TemplateData) or (
        isinstance(node, nodes.Filter) and node.name in allowed
    )


def unescaped(text: str, allowed: set[str]) -> list[str]:
    """The lines of a template with a value that is not escaped."""
    tree = jinja2.Environment(extensions=[]).parse(text)
    given: dict[str, list[nodes.Node]] = {}
    for row in tree.find_all(nodes.Assign):
        if isinstance(row.target, nodes.Name):
            given.setdefault(row.target.name, []).append(row.node)
    constants = {name for name, values in given.items() if all(escaped(value, set(), set()) for value in values)}
    parts = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    return [text.splitlines()[part.lineno - 1] for part in parts if not escaped(part, allowed, constants)]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_every_value_of_a_template_has_the_escape_of_its_place(path: Path) -> None:
    stem = path.stem
    language = path.suffix if path.suffix != ".jinja" else next(name for name in LITERALS if stem.startswith(name))
    assert unescaped(path.read_text("utf-8"), ANYWHERE | LITERALS[language]) == []


@pytest.mark.parametrize(
    "place",
    [
        "{{ x }}", "{{ x | upper }}", "{{ x | java_text ~ x }}", "{{ x if y }}", "{{ x if y else 'z' }}",
        "{% set z = x %}{{ z }}", "{{ x | join(', ') }}", "{% if y %}{% for z in x %}{{ z }}{% endfor %}{% endif %}",
        "{{ x | swift_text }}", "{{ x + 1 | number }}",
    ],
)  # fmt: skip
def test_the_scan_finds_a_place_without_an_escape(place: str) -> None:
    assert unescaped(f"class A {{\n{place}\n}}", {"java_text", "number"}) == [place]
    assert unescaped("{{ x | java_text }}{{ 'a' if y }}{% set z = 'b' if y else 'c' %}{{ z }}", {"java_text"}) == []


def test_code_of_ours_is_written_out_and_values_are_filled_in() -> None:
    """`Code` of anything but a literal would take a text as it is."""
    for path in (ROOT / "pipeline").rglob("*.py"):
        if path == Path(source_code.__file__) or "Code(" not in (text := path.read_text("utf-8")):
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in ("Code", "codes"):
                values = [*call.args, *(keyword.value for keyword in call.keywords)]
                assert all(isinstance(value, ast.Constant) for value in values), f"{path}:{call.lineno}"


def test_code_takes_no_text_that_was_not_escaped() -> None:
    assert Code("f({}, {})").format(Code("x"), 1) == "f(x, 1)"
    for act in (Code("f({})").format, lambda text: Code(", ").join([text]), source_code.code, source_code.joined):
        with pytest.raises(ConfigError, match="cannot be written into source code"):
            act('x"')
    for value in ("1", float("inf"), float("nan"), True, None):
        with pytest.raises(ConfigError, match="cannot be written into source code"):
            source_code.number(value)
    for act in (source_code.identifier, source_code.token):
        for text in ("a b\n", 'a"', "a'", "a\\", "a`", "${a}", "a*/", "é"):
            with pytest.raises(ConfigError, match="cannot be written into source code"):
                act(text)


HOSTILE = (
    '"+P+"', "'+P+'", "*/P/*", "\nP", "\r\nP", "\\u000aP", "\\u0022+P+\\u0022", "*\\u002fP", '\\"+P', "\\\\u0022P",
    "${P}", "$P", "#{P}", "\\(P)", "`P`", '"""\nP', "'''\nP", '??/"P', "P??/", "P\\", "//P", "/*P", "<!--P-->", "]]>P",
    "&quot;P", "\u2028P", "\u2029P", "\x85P", "\x00P", "\x1aP", "\u202eP", "\ud7ff\U000e0041P", "%{P}", "{{P}}", "é P",
    "\ufffeP",
)  # fmt: skip
"""Texts that end a literal or a comment in some language, or are read as code in one."""


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("java", '"a\\u0022 + P; //"'), ("java", "/* a *\\u002f P /* */"), ("java", '"a\nP"'), ("java", "// a\\u000aP"),
        ("kotlin", '"${P}"'), ("kotlin", '"$P"'), ("kotlin", "/* */ */ P"), ("swift", '"\\(P)"'), ("swift", "/// a\nP"),
        ("cpp", '"??/\\" P; //"'), ("cpp", "// a\n P"), ("csharp", "// a\u2028P"), ("javascript", "`${P}`"),
        ("ruby", '"#{P}"'), ("ruby", "'a'+P+''"), ("ruby", "`P`"), ("python", "'a'+P"), ("dart", "'${P}'"),
    ],
)  # fmt: skip
def test_the_lexers_find_what_is_code(language: str, text: str) -> None:
    assert "P" in outside(text, language)


READ: dict[str, Callable[[str], object]] = {"javascript_text": json.loads, "python_text": ast.literal_eval}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", [name for name in FILTERS if name.endswith("_text") and name != "xml_text"])
def test_a_literal_holds_any_text(name: str, text: str) -> None:
    literal = FILTERS[name](text)
    assert literal.isprintable()
    assert outside(f"f({literal}) g", name.removesuffix("_text")) == 'f("") g'
    if name in READ:
        assert READ[name](literal) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_comment_holds_any_text(text: str) -> None:
    for escape in (source_code.comment, source_code.word):
        for language in ("java", "kotlin", "swift", "cpp", "csharp", "dart", "javascript"):
            assert outside(f"a // {escape(text)}\nb /* {escape(text)} */ c", language).split() == ["a", "b", "c"]
        for language in ("python", "ruby"):
            assert outside(f"a # {escape(text)}\nb", language).split() == ["a", "b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_xml_holds_any_text(text: str) -> None:
    read = ET.fromstring(f"<a b={source_code.xml_attribute(text)}>{source_code.xml_text(text)}</a>")
    assert (list(read), read.text) == ([], read.get("b"))
    assert read.text == visible(text).replace("\ufffe", "_")


def test_a_literal_of_java_is_what_its_compiler_reads() -> None:
    """By the rules of JLS 3.3 and 3.10.7: a backslash before `u` is an escape where an even number stands before it."""

    def read(literal: str) -> str:
        units = re.sub(r"(?<!\\)((?:\\\\)*)\\u+([0-9a-f]{4})", lambda found: found[1] + chr(int(found[2], 16)), literal)
        plain = {"n": "\n", "r": "\r", "t": "\t"}
        text = re.sub(r"\\(.)", lambda found: plain.get(found[1], found[1]), units[1:-1], flags=re.DOTALL)
        return text.encode("utf-16", "surrogatepass").decode("utf-16")

    assert [read(source_code.java_text(text)) for text in HOSTILE] == list(HOSTILE)
