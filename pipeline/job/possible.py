"""Which planned runs the library of their device can load, and in which layout a GPU runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from device_runner import providers as runner_providers
from device_runner.device import Device
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.compat import rules as compat_rules

LAYOUT = "preferredLayout"
"""WebGPU's option."""


def possible_runs(
    planned_runs: Sequence[campaign_planned.PlannedRun],
    read: compat_rules.ReadArtifacts,
    devices: Mapping[str, Device],
    libraries: Mapping[str, str | None],
    plugins: Collection[str] = (),
    *,
    change_layout: bool = False,
) -> tuple[list[campaign_planned.PlannedRun], list[campaign_record.Skipped]]:
    """Runs that the library of their device can load, and the others with the reason; unknown ones are left in.

    With `change_layout`, a GPU's run that names no layout takes the other one where that works and its own does not.
    """
    possible: list[campaign_planned.PlannedRun] = []
    impossible: list[campaign_record.Skipped] = []
    runtimes = {
        name: compat_rules.runtime_on(devices[name], libraries.get(name), plugins)
        for name in {planned.device for planned in planned_runs}
    }

    def why_not(planned: campaign_planned.PlannedRun) -> str:
        runtime = runtimes[planned.device]
        use = compat_rules.use_of(planned.options, planned.session_options)
        return compat_rules.first_error(compat_rules.findings_for(read, planned.file, runtime, use)) if runtime else ""

    keys = {planned.text for planned in planned_runs}
    for planned in planned_runs:
        reason = why_not(planned)
        moved = _in_nchw(planned) if reason and change_layout else None
        if moved and not why_not(moved):
            impossible.append(planned.skipped(f"run as {moved.way} in its place: {reason}"))
            possible += [moved] * (moved.text not in keys)
        elif reason:
            impossible.append(planned.skipped(reason))
        else:
            possible.append(planned)
    return possible, impossible


def _in_nchw(planned: campaign_planned.PlannedRun) -> campaign_planned.PlannedRun | None:
    """A run on a GPU that names no layout in the one that is not its default; None for all others."""
    options = planned.options
    if not runner_providers.provider_named(options.provider).gpu or LAYOUT in options.provider_options:
        return None
    asked = {**options.provider_options, LAYOUT: "NCHW"}
    return replace(planned, options=msgspec.structs.replace(options, provider_options=asked))
