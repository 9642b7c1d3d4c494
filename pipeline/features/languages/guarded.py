"""The guard in code for apps that take no package: which language has one, and the files that stand beside its code."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import features
from pipeline.core.errors import ConfigError
from pipeline.release import guards, self_test
from pipeline.release import manifest as bundle_manifest

HEADERS = features.Place[Callable[[], dict[str, str]]]("snippet.guard")
"""The guard's headers for C++: file name to source."""

LANGUAGE = "cpp"
"""The language whose code has a guard."""

UNGUARDED = "each opening tries what was released, and a driver that dies, hangs or computes nonsense is not noticed"
LACKS: Mapping[str, str] = {
    "kotlin": f"no guard: {UNGUARDED}; the classes of `release android`, which Kotlin calls, have one",
    "react-native": f"no guard: {UNGUARDED}; a native module over the classes of `release android` and `apple` has one",
    "flutter": f"no guard: {UNGUARDED}; a plugin over the classes of `release android` and `release apple` has one",
    "maui": f"no guard: {UNGUARDED}; a binding of the classes of `release android` and `release apple` has one",
    "cpp": f"no guard: {UNGUARDED}; --guard FOLDER writes one",
    "python": f"no guard: {UNGUARDED}",
}
"""What code that opens a model without a guard says of it, by the word after --for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """What code behind a guard names of its bundle, and what is in the folder beside it; `tests` are by model."""

    bundle: str
    digest: str
    rollback: str
    headers: Mapping[str, str]
    tests: Mapping[str, self_test.SelfTest]

    def files(self, names: Mapping[str, str]) -> dict[str, bytes | str]:
        """The files of the folder; `names` has those that code has for the models."""
        found = {names[model]: test.data for model, test in self.tests.items() if model in names}
        samples = {f"{name}.sample": data for name, data in found.items() if data}
        return {**self.headers, **samples}

    def warnings(self) -> Iterator[str]:
        """Of which models session options are tried without a look at their outputs, or refused though they ship."""
        for test in self.tests.values():
            yield from test.warnings


def guarded(language: str, bundle: Path, manifest: bundle_manifest.Manifest, target: str) -> Guarded:
    """The guard of a target's models; ConfigError for a language without one, and where the feature is not there."""
    headers = {name: text for write in HEADERS for name, text in write().items()}
    if language != LANGUAGE or not headers:
        raise ConfigError(
            f"code for {language} has no guard",
            where="--guard",
            why="ort-mobile writes one for C++, and the classes of `release android` and `release apple` have it",
            remedy="leave --guard out, or take --for cpp",
        )
    back = [fallback for fallback in manifest.content.rollback if fallback is not bundle_manifest.Fallback.RUN]
    return Guarded(
        bundle=manifest.content.name,
        digest=manifest.content_sha256,
        rollback=",".join(back),
        headers=headers,
        tests=guards.self_tests(bundle, manifest, target),
    )
