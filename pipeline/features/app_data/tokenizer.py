"""A tokenizer in Python, from its file alone: what the classes of an app do, step for step."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from pipeline.features.app_data import code_points, tokenizer_file
from pipeline.features.app_data.tokenizer_parts import Algorithm

ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
"""What the pattern of byte-level BPE takes for words of their own."""


class Tokenizer:
    """The ids of texts."""

    def __init__(self, content: bytes) -> None:
        """From the bytes of a tokenizer's file; ValueError for another one."""
        file = tokenizer_file.read(content)
        self.algorithm, self.library, parts = file.algorithm, file.library, file.sections
        options = dict(line.split(" ") for line in parts["options"])
        self.options = {name: int(number) for name, number in options.items()}
        self.begin, self.end = ([int(line) for line in parts[name]] for name in ("begin", "end"))
        added = [line.partition(" ") for line in parts["added"]]
        self.added = {text: int(number) for number, _, text in added}
        kinds = [line.split(" ") for line in parts["kinds"]]
        self.kind_starts = [int(first, 16) for first, _ in kinds]
        self.kinds = [int(kind) for _, kind in kinds]
        if self.algorithm is Algorithm.WORD_PIECE:
            self.changes = [line.split(" ") for line in parts["changes"]]
            self.change_starts = [int(change[0], 16) for change in self.changes]
            self.prefix = parts["prefix"][0]
            self.vocabulary = {token: number for number, token in enumerate(parts["vocabulary"]) if token}
            self.longest = max(map(len, self.vocabulary))
        else:
            self.bytes = list(map(int, parts["bytes"]))
            merges = [tuple(map(int, line.split(" "))) for line in parts["merges"]]
            self.merges = {(left, right): (rank, made) for rank, (left, right, made) in enumerate(merges)}

    def ids(self, text: str, most: int) -> list[int]:
        """The ids of a text with those around it, `most` at most: what is too long loses its end."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            starts = [(start, -len(token), token) for token in self.added if (start := text.find(token, at)) >= 0]
            start, _, token = min(starts, default=(len(text), 0, ""))
            if start > at:
                ids += self._piece(text[at:start])
            if token:
                ids.append(self.added[token])
            at = start + len(token)
        return [*self.begin, *ids[: most - len(self.begin) - len(self.end)], *self.end]

    def _piece(self, text: str) -> list[int]:
        """The ids of a text without added tokens."""
        if self.algorithm is Algorithm.WORD_PIECE:
            return [number for word in self._words(text) for number in self._pieces(word)]
        text = f" {text}" if self.options["blank"] and not text.startswith(" ") else text
        return [number for word in self._parts(text) for number in self._merged(word)]

    def _kind(self, text: str) -> int:
        return self.kinds[bisect_right(self.kind_starts, ord(text)) - 1]

    def _changed(self, text: str) -> str:
        """What the normalizer makes of a code point."""
        code = ord(text)
        if self.options["hangul"] and code in code_points.HANGUL:
            lead, rest = divmod(code - 0xAC00, 588)
            vowel, tail = divmod(rest, 28)
            return chr(0x1100 + lead) + chr(0x1161 + vowel) + (chr(0x11A7 + tail) if tail else "")
        place = bisect_right(self.change_starts, code) - 1
        if place < 0 or code > int(self.changes[place][1], 16):
            return text
        _, _, how, *numbers = self.changes[place]
        if how == code_points.BY:
            return chr(code + int(numbers[0]))
        if how == code_points.TO:
            return "".join(chr(int(number, 16)) for number in numbers)
        return f" {text} " if how == code_points.BLANKS else ""

    def _words(self, text: str) -> Iterator[str]:
        """Words of WordPiece, and marks, each of which is one."""
        word = ""
        for code in "".join(map(self._changed, text)):
            kind = self._kind(code)
            if kind == code_points.ORDINARY:
                word += code
                continue
            yield word
            word = ""
            if kind == code_points.MARK:
                yield code
        yield word

    def _pieces(self, word: str) -> Sequence[int]:
        """The longest tokens of a word from its start on, or the one for what is unknown."""
        ids: list[int] = []
        at = 0
        while at < len(word):
            before = self.prefix if at else ""
            ends = range(min(len(word), at + self.longest), at, -1)
            end = next((end for end in ends if before + word[at:end] in self.vocabulary), 0)
            if not end or len(word) > self.options["longest"]:
                return [self.options["unknown"]]
            ids.append(self.vocabulary[before + word[at:end]])
            at = end
        return ids

    def _parts(self, text: str) -> Iterator[str]:
        """What the pattern of byte-level BPE finds: endings, and runs of one kind with a blank before them."""
        at = 0
        while at < len(text):
            ending = next((ending for ending in ENDINGS if text.startswith(ending, at)), "")
            end = at + len(ending)
            if not ending:
                begins = text[at] == " " and at + 1 < len(text) and self._kind(text[at + 1]) != code_points.SPACE
                end = at + begins
                kind = self._kind(text[end])
                while end < len(text) and self._kind(text[end]) == kind:
                    end += 1
                if kind == code_points.SPACE and end < len(text) and end - at > 1:
                    end -= 1  # the last blank belongs to what follows
            yield text[at:end]
            at = end

    def _merged(self, word: str) -> list[int]:
        """The ids of a word's bytes, merged by rank, the first of equals first."""
        ids = [self.bytes[byte] for byte in word.encode()]
        while len(ids) > 1:
            pairs = enumerate(itertools.pairwise(ids))
            ranked = [(*self.merges[pair], at) for at, pair in pairs if pair in self.merges]
            if not ranked:
                break
            _, made, at = min(ranked)
            ids[at : at + 2] = [made]
        return ids
