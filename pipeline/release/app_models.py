"""What generated code for apps has in common in every language: what ships to a target, and names. Pure functions."""

import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import jinja2

from pipeline.config import Config, Target
from pipeline.core.errors import ConfigError
from pipeline.release.app_code import comment_text
from pipeline.release.manifest import Manifest, TensorSignature


def target_of(bundle: Path, manifest: Manifest, platforms: Sequence[str], title: str, target: str | None) -> str:
    """The target that is meant: `target`, or the only one of these platforms.

    `title` is how messages call the platforms. Raises ConfigError for a target that the bundle does not have.
    """
    names = [row.target for row in manifest.content.ships if row.platform in platforms]
    return _only_target(names, platforms, title, target, "bundle", str(bundle))


def target_in(config: Config, platforms: Sequence[str], title: str, target: str | None, where: str) -> Target:
    """As `target_of`, of a config."""
    targets = {row.name: row for row in config.targets if row.platform in platforms}
    return targets[_only_target(targets, platforms, title, target, "config", where)]


def _only_target(
    names: Iterable[str], platforms: Sequence[str], title: str, target: str | None, what: str, where: str
) -> str:
    targets = list(dict.fromkeys(names))
    if not targets:
        raise ConfigError(
            f"nothing in this {what} is for {title}",
            where=where,
            remedy=f'add a [[targets]] with platform = "{platforms[0]}" to the config'
            + ", and make the bundle again" * (what == "bundle"),
        )
    if target is None and len(targets) > 1:
        raise ConfigError(
            f"this {what} has {len(targets)} targets for {title}",
            where=where,
            remedy=f"name one with {'--target' if what == 'bundle' else '`target`'}: {', '.join(targets)}",
        )
    wanted = target or targets[0]
    if wanted not in targets:
        raise ConfigError(
            f"this {what} has no target {wanted!r} for {title}",
            where=where,
            remedy=f"name one that it has: {', '.join(targets)}",
        )
    return wanted


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
    tensors: Sequence[TensorSignature], taken: Collection[str], alone: str = ""
) -> Iterator[tuple[TensorSignature, str]]:
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


def tensor_text(tensor: TensorSignature) -> str:
    """Name, type and shape, for a comment."""
    axes = ["?" if axis is None else comment_text(str(axis)) for axis in tensor.shape or ()]
    shape = "any shape" if tensor.shape is None else " x ".join(axes) or "a scalar"
    return f"{comment_text(tensor.name)}: {tensor.dtype}, {shape}"


@cache
def _templates(package: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=False,  # noqa: S701 - Java and Swift, not HTML: literals and comments are made by app_code
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_source(package: str, template: str, /, **values: object) -> str:
    """Source code from a template in the folder `templates` of a package; a value that is missing is an error."""
    return _templates(package).get_template(template).render(values)
