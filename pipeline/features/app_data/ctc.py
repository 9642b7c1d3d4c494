"""From values for characters at each step to text: the best of each, without repetitions and blanks (CTC, greedy)."""

from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd

TEXT, SCORES = "text", "scores"
"""The outputs: the characters of the text in their order, and the value of each; none of a text without any."""


def add_to(part: GraphEnd, ending: Ending) -> None:
    """The nodes from [1, steps, characters] or [steps, 1, characters] to the outputs; ConfigError where none fit."""
    ending.require("values for characters", 2, 3)
    characters = _with_blank(ending)
    values = part.flat(ending.tensor.name, "steps", -1, len(characters))
    if ending.gives.softmax:
        values = part.add("Softmax", [values], "probabilities", axis=-1)
    best = part.add("ArgMax", [values], "best of a step", axis=1, keepdims=1)  # the first of equals
    score = part.flat(part.add("GatherElements", [values, best], "value of a step", axis=1), "values of steps")
    numbers = part.flat(best, "numbers")
    before = part.add(
        "Concat", [part.integers("none", -1), part.columns(numbers, 0, -1, 0, "all but the last")], "before", axis=0
    )
    again = part.add("Equal", [numbers, before], "again")
    empty = part.add("Equal", [numbers, part.integers("blank", ending.gives.blank_of(len(characters)))], "is blank")
    kept = part.add("Not", [part.add("Or", [again, empty], "left out")], "kept")
    chosen = part.add("Compress", [numbers, kept], "chosen", axis=0)
    part.give(
        part.add("Gather", [part.constant("characters", characters), chosen], "characters of it"),
        TEXT,
        "string",
        ["length"],
    )
    part.give(part.add("Compress", [score, kept], "values of it", axis=0), SCORES, "f32", ["length"])


def _with_blank(ending: Ending) -> list[str]:
    """The character of each number that the model knows; that of the blank is never read.

    PaddleOCR adds a space to the characters that it keeps, behind all others.
    """
    count, names = ending.size(-1), [*ending.names]
    if ending.gives.text is True and count == len(names) + 2:
        names.append(" ")
    blank = ending.gives.blank_of(len(names) + 1)
    if blank > len(names) or (count is not None and count != len(names) + 1):
        raise ending.refusal(
            f"{len(ending.names):,} characters do not fit the output {ending.tensor.name!r}",
            f"it is {ending.tensor}; a value for each character and one for the blank, number {blank}, are wanted",
            "give a character a line, without the blank, in the order of the model's numbers, and `gives.blank`",
        )
    return [*names[:blank], "", *names[blank:]]
