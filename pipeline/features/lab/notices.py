"""Telling of a campaign's end: the URL that was submitted with it, and the program or URL of `ended` in a host's hooks.

The database gives each notice to one host. What is told is a JSON document that this host makes; nothing in it, nor in
the database, gets into a command line. A notice that fails is tried twice more and costs nothing else.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from device_runner import files as runner_files
from device_runner import safe_text
from device_runner.errors import RunnerError
from pipeline.campaign.store import Store
from pipeline.features.lab import hooks
from pipeline.features.lab import queue as lab_queue
from pipeline.features.lab.waiting import ended_document

log = logging.getLogger(__name__)

URL, PROGRAM = "url", "program"
"""The kinds of notices: to the address that was submitted, and by the hook `ended` of the host that takes it."""

TIMEOUT_SECONDS = 15.0
"""For the server of an address that was submitted."""

FILE_NAME = "campaign.json"


@dataclass(frozen=True, slots=True)
class Notice:
    """That a campaign has ended, for who is to be told of it: its `address`, "" for the hook of a host."""

    campaign: str
    kind: str
    address: str

    def __str__(self) -> str:
        return f"notice {self.campaign} {self.kind}"


def taken_notice(session: lab_queue.LabSession, kinds: list[str]) -> Notice | None:
    """A notice that this host is to give; None while there is none."""
    answer = session.call("lab_notice", lab_queue.texts(kinds))
    return Notice(*map(str, answer)) if isinstance(answer, list) else None


def tell(
    store: Store, session: lab_queue.LabSession, notice: Notice, ended: hooks.Hook | None, say: Callable[[str], None]
) -> None:
    """Give a notice, and say in the database how it went."""
    campaign, kind, address = notice.campaign, notice.kind, notice.address
    try:
        document = ended_document(store, campaign, store.campaign(campaign).name)
        hook = hooks.Hook(url=address, timeout_seconds=TIMEOUT_SECONDS) if kind == URL else ended
        failure = _failure(hook, document) if hook else "this host has no `ended`"
    except (RunnerError, OSError) as error:
        failure = str(error)
    # an address may have a secret in it, which no log gets
    shown = safe_text.visible(failure.replace(address, "its address") if address else failure)[: lab_queue.MOST_REASON]
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
    with runner_files.scratch_folder(hooks.WORK_PREFIX) as folder:
        file = folder / FILE_NAME
        file.write_bytes(msgspec.json.encode(document))
        command = [word.replace("{file}", str(file)) for word in hook.command]
        said = hooks.said_by_command(command, folder, hook.timeout_seconds)
        return late if said is None else said
