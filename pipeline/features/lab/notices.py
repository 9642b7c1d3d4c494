"""Telling of a campaign's end: the URL that was submitted with it, and the program or URL of `ended` in a host's hooks.

The database gives each notice to one host. What is told is a JSON document that this host makes; nothing in it, nor in
the database, gets into a command line. A notice that fails is tried twice more and costs nothing else.
"""

import logging
import os
from collections.abc import Callable

import msgspec

from device_runner.errors import RunnerError
from device_runner.files import scratch_folder, visible
from device_runner.local import run_group, tail
from pipeline.campaign.store import Store
from pipeline.features.lab import hooks, queue
from pipeline.features.lab.waiting import ended_document

log = logging.getLogger(__name__)

URL, PROGRAM = "url", "program"
"""The kinds of notices: to the address that was submitted, and by the hook `ended` of the host that takes it."""

TIMEOUT_SECONDS = 15.0
"""For the server of an address that was submitted."""

FILE_NAME = "campaign.json"


def taken_notice(session: queue.LabSession, kinds: list[str]) -> tuple[str, str, str] | None:
    """A notice that this host is to give: campaign, kind and address; None while there is none."""
    answer = session.call("lab_notice", queue.texts(kinds))
    return (str(answer[0]), str(answer[1]), str(answer[2])) if isinstance(answer, list) else None


def tell(
    store: Store, session: queue.LabSession, notice: tuple[str, str, str], ended: hooks.Hook | None,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Give a notice, and say in the database how it went."""
    campaign, kind, address = notice
    try:
        document = ended_document(store, campaign, store.campaign(campaign).name)
        hook = hooks.Hook(url=address, timeout_seconds=TIMEOUT_SECONDS) if kind == URL else ended
        failure = _failure(hook, document) if hook else "this host has no `ended`"
    except (RunnerError, OSError) as error:
        failure = str(error)
    # an address may have a secret in it, which no log gets
    shown = visible(failure.replace(address, "its address") if address else failure)[: queue.MOST_REASON]
    what = f"{campaign}: {'its address' if kind == URL else 'the hook `ended`'}"
    if failure:
        log.warning("%s was not told of its end: %s", what, shown)
    else:
        say(f"{what} was told of its end")
    session.call("lab_noticed", campaign, kind, shown)


def _failure(hook: hooks.Hook, document: dict[str, object]) -> str:
    """Why a hook did not take the document of a campaign that has ended, or ""."""
    late = f"it had not answered after {hook.timeout_seconds:g} s"
    if hook.url:
        told = msgspec.structs.replace(hook, json=document)
        said = hooks.said_by_server(told, hook.url, str)
        return late if said is None else said
    with scratch_folder(hooks.WORK_PREFIX) as folder:
        file = folder / FILE_NAME
        file.write_bytes(msgspec.json.encode(document))
        command = [word.replace("{file}", str(file)) for word in hook.command]
        try:
            code = run_group(command, folder, hook.timeout_seconds, os.environ)
        except OSError as error:
            return f"{command[0]} cannot be started: {error.strerror or error}"
        if code is None:
            return late
        said = tail(folder / "stderr", hooks.MOST_ANSWER)
        return "" if code == 0 else f"{command[0]} ended with {code}: {' '.join(said.split())}"
