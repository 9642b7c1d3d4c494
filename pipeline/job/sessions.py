"""The sessions in which an app opens an artifact, as far as they can change what it computes.

Runs that differ in threads alone are one session: what decides how fast a file is cannot make it wrong. The CPU
computes in place of providers, which the stock wheel lacks; what these compute is compared on devices.
"""

from collections.abc import Iterable, Sequence

from device_runner.options import AFFINITY_KEY, BLOCK_KEY, FALLBACK_KEY, MAPPED
from device_runner.spec import RunOptions
from pipeline.campaign.plan import matches
from pipeline.campaign.run_options import run_options
from pipeline.config import RunConfig
from pipeline.core.ort_session import NO_SPINNING
from pipeline.core.variant import Artifact, Level
from pipeline.model.session import AppSession

OF_SPEED = frozenset({*NO_SPINNING, *MAPPED, AFFINITY_KEY, BLOCK_KEY})
"""Session config entries that say how fast a session is, and nothing of what it computes."""
OF_PROVIDERS = "ep."
"""What the entries of providers begin with; some write files (ep.context_file_path)."""


def app_sessions(runs: Sequence[RunConfig], artifact: Artifact) -> tuple[AppSession, ...]:
    """The sessions that the runs ask for of an artifact."""
    ways = [(run.variants, options) for run in runs for options in run_options(run)]
    return sessions_of(options for patterns, options in ways if matches(patterns, options.provider, artifact.variant))


def sessions_of(runs: Iterable[RunOptions]) -> tuple[AppSession, ...]:
    """The distinct sessions of some runs in their order; ONNX Runtime's default where there are none."""
    sessions: list[AppSession] = []
    for options in runs:
        config = {
            key: value
            for key, value in sorted(options.session_config.items())
            if key not in OF_SPEED and key != FALLBACK_KEY and not key.startswith(OF_PROVIDERS)
        }
        session = AppSession(level=Level(options.optimization_level.value), config=config)
        if session not in sessions:
            sessions.append(session)
    return tuple(sessions) or (AppSession(),)
