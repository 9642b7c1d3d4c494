"""What packages for apps refuse of a bundle, said when it is made: by the functions that write their code."""

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from pipeline.core.errors import APP_CODE, ConfigError, Finding, Severity, finding_of
from pipeline.release.manifest import Manifest


def objections(
    manifest: Manifest, platforms: Collection[str], command: str, write: Callable[[str], object],
    left_out: Callable[[str], Iterable[str]] = lambda _: (),
) -> Iterator[Finding]:  # fmt: skip
    """A warning for each target of some platforms for which `write`, which gets its name, raises ConfigError.

    Where it does not, one for each thing that `left_out` names of the target.
    """
    for target in dict.fromkeys(ships.target for ships in manifest.content.ships if ships.platform in platforms):
        where = f"target {target}"
        try:
            write(target)
        except ConfigError as error:
            refused = finding_of(error, where, Severity.WARNING)
            yield msgspec.structs.replace(refused, rule=APP_CODE, what=f"`release {command}` refuses it: {error.what}")
        else:
            yield from (
                Finding(severity=Severity.WARNING, what=text, where=where, rule=APP_CODE) for text in left_out(target)
            )
