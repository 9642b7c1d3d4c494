"""Options that crashed: kept for all devices of that class, reduced to the smallest that do, and not tried again."""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import options as runner_options
from device_runner import result as run_result
from device_runner.device import Device, DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec

log = logging.getLogger(__name__)


def deny_list() -> Path:
    """The deny list of this user; a text file in JSON."""
    return runner_files.state_folder() / "denied.json"


def denied_here(
    options: RunOptions, facts: DeviceFacts, entries: Sequence[runner_options.Denied], model_sha256: str
) -> run_result.Failure | None:
    """Why a model is not to be run so on a device: impossible there, or known to crash it. None to go on."""
    return runner_options.impossible_here(options, facts) or runner_options.denial(
        facts, options, entries, model_sha256
    )


def known_denied() -> list[runner_options.Denied]:
    """What is known to crash; raises RunnerError for a deny list that cannot be read."""
    return runner_options.read_denied(deny_list())


def blame(device: Device, facts: DeviceFacts, spec: RunSpec, crashed: RunResult) -> runner_options.Denied | None:
    """The smallest part of a crashed run's options that crashes, entered in the deny list.

    Where the provider crashes with no option at all, it is denied for this model alone. None where an entry of another
    run explains it by now, where the crash does not come again, or comes on the CPU without any option: then it is the
    model's or the library's.
    """
    if denied_here(spec.options, facts, known_denied(), spec.model_sha256 or ""):
        return None
    last = crashed

    def crashes(options: RunOptions) -> bool:
        nonlocal last
        if runner_options.impossible_here(options, facts):
            return False
        result = device.run(msgspec.structs.replace(spec, options=options))
        again = result.failure is not None and result.failure.code is run_result.FailureKind.CRASH
        last = result if again else last
        return again

    if not crashes(spec.options):
        log.warning("%s: the crash does not come again: nothing is entered in the deny list", device.name)
        return None
    smallest = runner_options.smallest_failing(spec.options, crashes)
    if smallest == RunOptions():
        log.warning("%s: it crashes with no options at all: nothing is entered in the deny list", device.name)
        return None
    entry = runner_options.Denied(
        model_sha256=None if runner_options.parts(smallest) else spec.model_sha256,
        devices=runner_options.class_for(facts, smallest),
        options=smallest,
        ort_version=last.ort_version,
        kind=run_result.FailureKind.CRASH,
        message=last.failure.what[:300] if last.failure else "",
        seen_at=run_result.utc_now(),
    )
    runner_options.add_denied(deny_list(), entry)
    return entry
