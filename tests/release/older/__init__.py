"""What earlier releases wrote of the example: bundles of manifest versions 1 and 2, and results.json of version 1."""

import shutil
from pathlib import Path

HERE = Path(__file__).parent
BUNDLES = (1, 2)
RESULTS = HERE / "results.v1.json"


def bundle_of_version(version: int, folder: Path) -> Path:
    """The bundle, in a folder; its artifact is the same in both versions, and stands here once."""
    bundle = folder / f"bundle.v{version}"
    shutil.copytree(HERE / f"v{version}", bundle)
    (bundle / "models").mkdir()
    shutil.copy(HERE / "mnist.basic-fixed.ort", bundle / "models")
    return bundle
