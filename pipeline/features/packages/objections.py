"""What packages for apps refuse of a bundle, said when it is made: by the functions that write their code."""

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.release import manifest as bundle_manifest


def objections(
    manifest: bundle_manifest.Manifest,
    platforms: Collection[str],
    command: str,
    write: Callable[[str], object],
    left_out: Callable[[str], Iterable[str]] = lambda _: (),
) -> Iterator[Finding]:
    """A warning for each target of some platforms for which `write`, which gets its name, raises ConfigError.

    Where it does not, one for each thing that `left_out` names of the target.
    """
    for target in dict.fromkeys(ships.target for ships in manifest.content.ships if ships.platform in platforms):
        where = f"target {target}"
        try:
            write(target)
        except ConfigError as error:
            refused = core_errors.finding_of(error, where, Severity.WARNING)
            yield msgspec.structs.replace(
                refused, code=core_errors.APP_CODE, what=f"`release {command}` refuses it: {error.what}"
            )
        else:
            yield from (
                Finding(severity=Severity.WARNING, what=text, where=where, code=core_errors.APP_CODE)
                for text in left_out(target)
            )
