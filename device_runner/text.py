"""Text of files, devices and libraries on its way to a terminal or a log: it is shown, and never acts."""

import re

INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, marks that turn the direction of text, separators of lines, zero-width ones, lone surrogates."""


def visible(text: str) -> str:
    r"""`text` on one line with every invisible character written out, as in \x1b: nothing can act or hide."""
    return INVISIBLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """As `visible`, but lines stay lines: all after the first begin with `  | `, so that none passes for ours."""
    return "\n  | ".join(map(visible, text.rstrip("\n").split("\n")))
