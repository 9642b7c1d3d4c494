"""The helper: a program among an app's native libraries that tries a model in a process of its own, by ABI.

Android starts programs that came in the package alone, and unpacks of it what is called `lib*.so`.
"""

from collections.abc import Iterable, Mapping

from device_runner import build as runner_build
from device_runner.errors import RunnerError
from device_runner.probe import protocol
from device_runner.spec import RunOptions

MOST_BYTES = 90 << 10
"""Of a helper: two ABIs of it in an app."""


def helpers(abis: Iterable[str]) -> Mapping[str, bytes | str]:
    """By ABI: the helper, or why there is none. Then trials are made in the app itself, behind a marker."""
    return {abi: _helper(abi) for abi in abis}


def _helper(abi: str) -> bytes | str:
    try:
        return runner_build.build_trial(abi).read_bytes()
    except RunnerError as error:
        return f"{error.what}: {error.why}" if error.why else error.what


def request(options: RunOptions) -> str:
    """Session options as the helper reads them, with a NUL behind each text."""
    return "".join(f"{text}\0" for triple in protocol.option_triples(options) for text in triple)
