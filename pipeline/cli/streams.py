"""Texts on streams of any encoding: what an encoding lacks is written in ASCII, never an error."""

import codecs
import io
import sys

ASCII = {
    "→": "->", "…": "...", "·": "-", "±": "+/-", "≤": "<=", "≥": ">=", "≠": "!=", "µ": "u", "✓": "ok",
}  # fmt: skip
"""Characters that our own texts use, in ASCII."""

HANDLER = "ort-mobile-ascii"


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    r"""The handler of codecs: a character in ASCII, or escaped as in \u1234."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = (ASCII.get(char) or char.encode("ascii", "backslashreplace").decode() for char in lacking)
    return "".join(plain), error.end


def accept_any_text() -> None:
    """Make stdout and stderr write every text, whatever encoding the terminal, locale or pipe has."""
    codecs.register_error(HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not so where there is none, or a test has its own
            stream.reconfigure(errors=HANDLER)
