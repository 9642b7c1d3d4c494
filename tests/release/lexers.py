"""What of source code is neither literal nor comment, by the lexical rules of each language."""

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexis:
    """How comments and literals begin and end; `filled` is code within a literal, which counts as code."""

    line: str = "//"
    ends: str = "\n\r"
    blocks: bool = True
    nests: bool = False
    quotes: tuple[str, ...] = ('"', "'")
    raw: tuple[str, ...] = ()
    """Quotes of literals that fill nothing in."""
    filled: str = ""


LEXES = {
    "java": Lexis(),
    "kotlin": Lexis(nests=True, quotes=('"""', '"', "'"), filled=r"\$\{?[A-Za-z_]"),
    "swift": Lexis(nests=True, quotes=('"""', '"'), filled=r"\\\("),
    "cpp": Lexis(),
    "csharp": Lexis(ends="\n\r\x85\u2028\u2029"),
    "dart": Lexis(nests=True, quotes=('"""', "'''", '"', "'"), filled=r"\$\{?[A-Za-z_]"),
    "javascript": Lexis(ends="\n\r\u2028\u2029", quotes=('"', "'", "`")),
    "python": Lexis(line="#", blocks=False, quotes=('"""', "'''", '"', "'")),
    "ruby": Lexis(line="#", blocks=False, quotes=('"', "'", "`"), raw=("'",), filled=r"#[{$@]"),
}
EVEN = r"(?<!\\)(?:\\\\)*"
"""Backslashes that escape each other, and nothing behind them."""


@cache
def _starts(language: str) -> re.Pattern[str]:
    lexis = LEXES[language]
    marks = (lexis.line, *(["/*"] if lexis.blocks else []), *sorted(lexis.quotes, key=len, reverse=True))
    return re.compile("|".join(map(re.escape, marks)))


def outside(text: str, language: str) -> str:
    """The code with comments taken out and literals empty; what a literal fills in, or does not end, counts as code."""
    lexis = LEXES[language]
    if language == "java":  # before anything else: JLS 3.3
        text = re.sub(rf"({EVEN})\\u+([0-9a-fA-F]{{4}})", lambda found: found[1] + chr(int(found[2], 16)), text)
    if language == "cpp":  # trigraphs and lines that go on, in the order of the standard's phases
        text = re.sub(r"\\\n", "", text.replace("??/", "\\"))
    kept, place = [], 0
    while start := _starts(language).search(text, place):
        kept.append(text[place : start.start()])
        mark, place = start.group(), start.end()
        if mark == lexis.line:
            end = re.compile(f"[{lexis.ends}]|$(?!\n)").search(text, place)
            place = end.start() if end else len(text)
        elif mark == "/*":
            place = _behind_block(text, place, nests=lexis.nests)
        else:
            code, place = _literal(text, place, mark, lexis)
            kept.append(f'"{code}"')
    return "".join([*kept, text[place:]])


def _behind_block(text: str, place: int, *, nests: bool) -> int:
    depth = 1
    for found in re.compile(r"/\*|\*/").finditer(text, place):
        depth += {"/*": 1 if nests else 0, "*/": -1}[found.group()]
        if not depth:
            return found.end()
    return len(text)


def _literal(text: str, place: int, quote: str, lexis: Lexis) -> tuple[str, int]:
    """What of a literal is code, all where it has no end on its line, and where it ends."""
    several = len(quote) > 1 or quote == "`"
    content = re.compile(rf"(?:\\.|(?!{quote})[^\\{'' if several else lexis.ends}])*", re.DOTALL).match(text, place)
    assert content
    inside, end = content.group(), content.end()
    if not text.startswith(quote, end):
        return inside, end
    fills = lexis.filled and quote not in lexis.raw and re.search(EVEN + lexis.filled, inside)
    return (inside if fills or quote == "`" else ""), end + len(quote)
