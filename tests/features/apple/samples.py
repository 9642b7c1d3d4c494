"""Bundles of a real small model for Swift packages."""

from typing import Any

from device_runner.spec import RunOptions
from pipeline.release.manifest import Shipped
from tests.features.android.samples import shipped

COREML = RunOptions(
    provider="coreml",
    provider_options={"ModelFormat": "MLProgram"},
    session_config={"session.intra_op.allow_spinning": "0"},
)
CPU = RunOptions(intra_op_threads=2)


def for_ios(model: str = "m", **more: Any) -> Shipped:
    return shipped(model, **{
        "platform": "ios", "runs": (COREML, CPU), "ort_release": "1.24", "min_api_level": None,
        "min_os_version": "15.1", **more,
    })  # fmt: skip
