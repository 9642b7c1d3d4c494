"""Texts of others made safe to show: on one line, nothing invisible, no passwords."""

import re

INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, marks that turn the direction of text, separators of lines, zero-width ones, lone surrogates;
soft hyphens, fillers, tags and other characters that Unicode has shown as nothing (Default_Ignorable_Code_Point)."""


def visible(text: str) -> str:
    r"""`text` on one line with every invisible character written out, as in \x1b: nothing can act or hide."""
    return INVISIBLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """As `visible`, but lines stay lines: all after the first begin with `  | `, so that none passes for ours."""
    return "\n  | ".join(map(visible, text.rstrip("\n").split("\n")))


def public_address(address: str) -> str:
    """An address without the user and the password that may stand in it."""
    return re.sub(r"(?<=://)[^/]*@", "", address)
