"""What a guard adds to a library: its classes, self-tests among the assets, programs for trials among native libraries.

The feature that knows of guards stands in these places; without it a library has none of this.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from device_runner import build as runner_build
from device_runner.spec import RunOptions
from pipeline.core import features
from pipeline.release import guards, self_test
from pipeline.release import manifest as bundle_manifest

GUARDS = features.Place[Callable[[Mapping[str, object]], dict[str, str]]]("android.guard")
"""The classes of a guard for a package: file name to source, from the values of its templates."""

TRIALS = features.Place[Callable[[Iterable[str]], Mapping[str, bytes | str]]]("android.trials")
"""Programs that try a model in a process of their own, by ABI, or why there is none."""

REQUESTS = features.Place[Callable[[RunOptions], str]]("android.requests")
"""Session options as such a program reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What the guard of a library has beside its classes.

    `self_tests` are what phones try ways with, by model; `programs` those that do so in a process of their own, by ABI,
    or why there is none.
    """

    self_tests: Mapping[str, self_test.SelfTest] = field(default_factory=dict)
    programs: Mapping[str, bytes | str] = field(default_factory=dict)

    @property
    def has_program(self) -> bool:
        """Whether there is a program for any ABI."""
        return any(isinstance(program, bytes) for program in self.programs.values())

    @property
    def samples(self) -> dict[str, bytes]:
        """The data of self-tests, by model."""
        return {model: test.data for model, test in self.self_tests.items() if test.data}

    @property
    def warnings(self) -> Iterator[str]:
        """What is not there, and why."""
        for test in self.self_tests.values():
            yield from test.warnings
        for abi, why in self.programs.items():
            if isinstance(why, str):
                yield f"no program for trials on {abi}, where the app itself makes them: {why}"

    def natives(self, package: str) -> dict[str, bytes]:
        """The programs by their paths in an AAR. The package is in their names: no two libraries have the same."""
        name = trial_name(package)
        return {
            f"jni/{abi}/lib{name}.so": program for abi, program in self.programs.items() if isinstance(program, bytes)
        }


def protection(bundle: Path, manifest: bundle_manifest.Manifest, target: str, abis: Iterable[str]) -> Protection:
    """What guards have for the models of a target that something else than the CPU runs, on these ABIs."""
    tests = guards.self_tests(bundle, manifest, target)
    return Protection(self_tests=tests, programs=trial_programs(abis) if tests else {})


def trial_programs(abis: Iterable[str]) -> dict[str, bytes | str]:
    """By ABI: the program that tries models in a process of its own, or why there is none."""
    return {abi: program for write in TRIALS for abi, program in write(sorted(abis)).items()}


def trial_name(package: str) -> str:
    """What the program of a Java package is called, without `lib` and `.so`."""
    return runner_build.TRIAL_PREFIX.removeprefix("lib") + package.replace(".", "_")


def trial_request(options: RunOptions) -> str:
    """Session options as that program reads them; "" where no guard is there."""
    return "".join(write(options) for write in REQUESTS)
