"""What releases for apps know of the guard: which models have one, and what devices try session options with.

The feature that writes guards stands in the place here; without it there is none of this.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from device_runner.spec import RunOptions
from pipeline.core import features
from pipeline.release import manifest as bundle_manifest
from pipeline.release import self_test

SELF_TESTS = features.Place[Callable[[Path, bundle_manifest.Manifest, str], dict[str, self_test.SelfTest]]](
    "release.self_tests"
)


def self_tests(bundle: Path, manifest: bundle_manifest.Manifest, target: str) -> dict[str, self_test.SelfTest]:
    """The self-tests of a target, by model."""
    return {model: test for tests in SELF_TESTS for model, test in tests(bundle, manifest, target).items()}


def is_guarded(ways: Iterable[RunOptions], everywhere: Iterable[RunOptions], *, has_contexts: bool = False) -> bool:
    """Whether something else than the CPU may run a model, and the CPU does on every device.

    `everywhere` are the session options on devices that no other selection fits.
    """
    is_tried = has_contexts or any(not options.on_cpu for options in ways)
    return is_tried and any(options.on_cpu for options in everywhere)
