r"""Source code with values in it: each value goes through the escape of its place, in templates as a filter.

A stranger's manifest may hold any text. `Code` is what templates and calls take as it is: text of ours, in which every
value was escaped; a plain text where code is wanted is refused, and so is a value that cannot stand in its place.
Which escape a language needs: Java reads `\u0022` as a quote before it knows of literals; Kotlin, Dart and Ruby put
`$x` and `#{x}` in place; C++ before C++17 reads `??/` as a backslash; C# ends a line at U+0085, U+2028 and U+2029.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from xml.sax.saxutils import escape, quoteattr

import jinja2

from device_runner import safe_text
from pipeline.core.errors import ConfigError


class Code(str):
    """Code of ours; the values that it is filled with are code, too, or numbers."""

    __slots__ = ()

    def format(self, *values: object, **named: object) -> "Code":
        """As of str; ConfigError for a text that was not escaped."""
        return Code(super().format(*map(code, values), **{name: code(value) for name, value in named.items()}))

    def join(self, parts: Iterable[str]) -> "Code":
        """As of str; ConfigError for a text that was not escaped."""
        return Code(super().join(map(code, parts)))

    def stripped(self) -> "Code":
        """Without the ends of lines behind it."""
        return Code(self.rstrip("\n"))


def codes(**texts: str) -> Mapping[str, Code]:
    """A table of code, by name."""
    return {name: Code(text) for name, text in texts.items()}


def code(value: object) -> Code:
    """Code or a number as it is; ConfigError for anything else."""
    if isinstance(value, Code):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    raise _refused(value, "it is a text that was not escaped")


def joined(values: Iterable[object], between: str = ", ") -> Code:
    """Several pieces of code, as a filter of templates."""
    return Code(between).join([code(value) for value in values])


def number(value: object) -> Code:
    """A number; ConfigError for anything else, and for those without a literal (NaN, infinite)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST:
        return Code(value)
    raise _refused(value, "it is no number")


def truth(value: object) -> Code:
    """A truth value, as all of these languages but Python write it."""
    return Code("true" if value else "false")


def identifier(value: object) -> Code:
    """A name, with dots between its parts or without; ConfigError for what no language takes for one."""
    if isinstance(value, str) and IDENTIFIER.fullmatch(value):
        return Code(str(value))
    raise _refused(value, "it is no name that source code can have")


def token(value: object) -> Code:
    """What literals of all languages take as it is: a digest, a release, the name of a file of ours."""
    if isinstance(value, str) and TOKEN.fullmatch(value):
        return Code(str(value))
    raise _refused(value, "it has characters that names of ours do not have")


def word(text: str) -> Code:
    """Text in a comment as one word of letters, digits, dots, dashes and `_`."""
    return Code(re.sub(r"[^\w.-]", "_", text))


def comment(text: str) -> Code:
    """Text on one line in a comment of any language: nothing that ends one, begins another or goes on behind it."""
    return Code(re.sub(r"[\\*<>{}?]", "_", safe_text.visible(text)))


def java_text(text: str) -> Code:
    """A string literal of Java."""
    return _literal(text, lambda char: "".join(f"\\u{unit:04x}" for unit in _utf16(char)))


def csharp_text(text: str) -> Code:
    """A string literal of C#."""
    return java_text(text)


def kotlin_text(text: str) -> Code:
    """A string literal of Kotlin."""
    return Code(java_text(text).replace("$", "\\$"))


def dart_text(text: str) -> Code:
    """A string literal of Dart."""
    return kotlin_text(text)


def swift_text(text: str) -> Code:
    """A string literal of Swift."""
    return _literal(text, lambda char: f"\\u{{{ord(char):x}}}")


def cpp_text(text: str) -> Code:
    """A string literal of C++ in UTF-8."""
    return Code(_literal(text, lambda char: "".join(f"\\{byte:03o}" for byte in char.encode())).replace("?", "\\?"))


def javascript_text(text: str) -> Code:
    """A string literal of JavaScript and TypeScript."""
    return Code(json.dumps(text))


def python_text(text: str) -> Code:
    """A string literal of Python."""
    return Code(repr(text))


def ruby_text(text: str) -> Code:
    """A string literal of Ruby between single quotes, which put nothing in place and know no numbers of characters."""
    seen = "".join(char if char.isprintable() else "_" for char in text)
    return Code("'" + seen.replace("\\", "\\\\").replace("'", "\\'") + "'")


def xml_text(text: str) -> Code:
    """Text between the tags of XML, which has no control characters."""
    return Code(escape(NO_XML.sub("_", safe_text.visible(text))))


def xml_attribute(text: str) -> Code:
    """The value of an attribute of XML, with its quotes."""
    return Code(quoteattr(NO_XML.sub("_", safe_text.visible(text))))


ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
MOST = 1.7e308
NO_XML = re.compile("[\ufffe\uffff]")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
TOKEN = re.compile(r"[A-Za-z0-9_.:,@+/~ -]*")


def _literal(text: str, numbered: Callable[[str], str]) -> Code:
    """Text between double quotes; `numbered` is how the language writes a character that is not seen."""
    plain = (ESCAPES.get(char) or (char if char.isprintable() else numbered(char)) for char in text)
    return Code(f'"{"".join(plain)}"')


def _utf16(char: str) -> list[int]:
    units = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(units[start : start + 2], "big") for start in range(0, len(units), 2)]


def _refused(value: object, why: str) -> ConfigError:
    return ConfigError(
        f"{safe_text.visible(repr(value))[:200]} cannot be written into source code",
        where="the bundle's manifest",
        why=why,
        remedy="get the bundle from its source again, or make it again",
    )


FILTERS: Mapping[str, Callable[..., Code]] = {
    function.__name__: function
    for function in (
        code,
        joined,
        number,
        truth,
        identifier,
        token,
        word,
        comment,
        java_text,
        kotlin_text,
        dart_text,
        csharp_text,
        swift_text,
        cpp_text,
        javascript_text,
        python_text,
        ruby_text,
        xml_text,
        xml_attribute,
    )
}
"""By the names that templates call them by; each gives code for one kind of place."""


@cache
def _templates(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=False,  # noqa: S701 - source code, not HTML: each value has a filter of source_code
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= FILTERS
    return environment


def render_source(package: str, template: str, /, **values: object) -> Code:
    """Source code from a template in the folder `templates` of a package; a value that is missing is an error.

    Every value in a template goes through a filter, which a test of all templates sees to.
    """
    return Code(_templates(package).get_template(template).render(values))
