"""The sessions in which an app opens an artifact, as far as they can change what it computes.

Runs that differ in threads alone are one session: what decides how fast a file is cannot make it wrong. The CPU
computes in place of providers, which the stock wheel lacks; what these compute is compared on devices.
"""

from collections.abc import Iterable, Sequence

from device_runner import options as runner_options
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.campaign import plan as planning
from pipeline.campaign import run_options
from pipeline.core import ort_session
from pipeline.core.variant import Artifact, Level
from pipeline.model import session as model_session

OF_SPEED = frozenset(
    {*ort_session.NO_SPINNING, *runner_options.MAPPED, runner_options.AFFINITY_KEY, runner_options.BLOCK_KEY}
)
"""Session config entries that say how fast a session is, and nothing of what it computes."""
OF_PROVIDERS = "ep."
"""What the entries of providers begin with; some write files (ep.context_file_path)."""


def app_sessions(runs: Sequence[configs.RunConfig], artifact: Artifact) -> tuple[model_session.AppSession, ...]:
    """The sessions that the runs ask for of an artifact."""
    ways = [(run.variants, options) for run in runs for options in run_options.run_options(run)]
    return sessions_of(
        options for patterns, options in ways if planning.matches(patterns, options.provider, artifact.variant)
    )


def sessions_of(runs: Iterable[RunOptions]) -> tuple[model_session.AppSession, ...]:
    """The distinct sessions of some runs in their order; ONNX Runtime's default where there are none."""
    sessions: list[model_session.AppSession] = []
    for options in runs:
        config = {
            key: value
            for key, value in sorted(options.session_config.items())
            if key not in OF_SPEED and key != runner_options.FALLBACK_KEY and not key.startswith(OF_PROVIDERS)
        }
        session = model_session.AppSession(level=Level(options.optimization_level.value), config=config)
        if session not in sessions:
            sessions.append(session)
    return tuple(sessions) or (model_session.AppSession(),)
