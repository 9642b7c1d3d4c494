"""Which target of a bundle or a config is meant."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline import config as configs
from pipeline.config import Config
from pipeline.core.errors import ConfigError
from pipeline.release.manifest import Manifest


def target_of(bundle: Path, manifest: Manifest, platforms: Sequence[str], title: str, target: str | None) -> str:
    """The target that is meant: `target`, or the only one of these platforms.

    `title` is how messages call the platforms. Raises ConfigError for a target that the bundle does not have.
    """
    names = [shipped.target for shipped in manifest.content.ships if shipped.platform in platforms]
    return _only_target(names, platforms, title, target, "bundle", str(bundle))


def target_in(config: Config, platforms: Sequence[str], title: str, target: str | None, where: str) -> configs.Target:
    """As `target_of`, of a config."""
    targets = {target.name: target for target in config.targets if target.platform in platforms}
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
    chosen = target or targets[0]
    if chosen not in targets:
        raise ConfigError(
            f"this {what} has no target {chosen!r} for {title}",
            where=where,
            remedy=f"name one that it has: {', '.join(targets)}",
        )
    return chosen
