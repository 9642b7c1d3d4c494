"""The operator configs of a folder of artifacts: what a reduced build of ONNX Runtime must contain for all of them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.files import write_text
from pipeline.core.variant import Artifact

log = logging.getLogger(__name__)

CONFIG_FILE = "required_operators.config"


TYPED_CONFIG_FILE = "required_operators_and_types.config"


def write_configs(output: Path, artifacts: Sequence[Artifact]) -> tuple[Path, ...]:
    """Write the operator configs, with and without types, that a build needs to run all artifacts of the folder.

    Those of earlier conversions into it count, too: the app that takes the folder takes them all.
    """
    made = [output / Path(artifact.file).name for artifact in artifacts]
    earlier = [file for file in sorted(output.rglob("*.ort")) if file not in set(made)]
    texts = config_texts(made, earlier=earlier)
    for name, text in texts.items():
        write_text(output / name, text)
    return tuple(output / name for name in texts)


def config_texts(
    files: Sequence[Path], providers: Sequence[str] = (), *, extended: bool = False, earlier: Sequence[Path] = ()
) -> dict[str, str]:
    """Both operator configs of some artifacts by their file names: the union of what each needs.

    `extended`: the build is no plain minimal one, whatever the artifacts ask for. `earlier`: more artifacts, which are
    left out with a warning where they cannot be read; one of `files` that cannot is an error.
    """
    from pipeline.required_ops import from_needs, needs_of_artifacts, render

    distinct = {
        (file.stat().st_dev, file.stat().st_ino): file for file in (*earlier, *files)
    }  # equal ones are one file
    found, failed = needs_of_artifacts(distinct.values(), providers=providers, extended=extended)
    ours = {str(file) for file in files}
    for error in failed:
        if error.where in ours:
            raise error
        log.warning("%s is not in the operator config: %s: %s", error.where, error.what, error.why)
    needs = {need for artifact in found for need in artifact.needs}
    kinds = {CONFIG_FILE: False, TYPED_CONFIG_FILE: True}
    return {name: render(from_needs(needs, types=types)) for name, types in kinds.items()}
