"""Names in code for apps: classes of models, identifiers of tensors."""

import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from pipeline.core.errors import ConfigError
from pipeline.model.signature import TensorInfo


def class_name(model: str, taken: Container[str], prefixes: tuple[str, ...] = ()) -> str:
    """The name of a class: `ppocr-v4.det` is PpocrV4Det; none of `taken`, and none that begins as `prefixes`."""
    name = "".join(_words(model))
    if not name or name[0].isdigit():
        return f"Model{name}"
    return f"{name}Model" if name in taken or name.startswith(prefixes) else name


def refuse_equal_names(classes: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigError when two models, given with the names of their classes, would have one class."""
    seen: dict[str, str] = {}
    for model, name in classes:
        other = seen.setdefault(name.lower(), model)
        if other != model:
            raise ConfigError(
                f"the models {other} and {model} would both have the class {name}",
                where="[[models]] name",
                why="a class is named after the letters and digits of its model, and some file systems ignore case",
                remedy="rename one of them in the config, and make the bundle again",
            )


def identifiers(
    tensors: Sequence[TensorInfo], taken: Collection[str], alone: str = ""
) -> Iterator[tuple[TensorInfo, str]]:
    """Each with an identifier of its own: the letters and digits of its name, numbered where two are equal.

    Neither it nor it with `Shape` behind is in `taken`, or the identifier of another. A name that begins with no letter
    says nothing: where it is that of the only tensor, `alone` stands for it.
    """
    used = set(taken)
    for tensor in tensors:
        joined = "".join(_words(tensor.name))
        name = joined[:1].lower() + joined[1:]
        if not name or name[0].isdigit():
            name = alone if alone and len(tensors) == 1 else f"tensor{name}"
        number, free = 2, name
        while {free, f"{free}Shape"} & used:
            free, number = f"{name}_{number}", number + 1
        used |= {free, f"{free}Shape"}
        yield tensor, free


def _words(text: str) -> list[str]:
    return [word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", text)]
