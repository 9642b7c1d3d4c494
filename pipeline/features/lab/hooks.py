"""What an agent's host calls before it takes a device and after it gives it back, as for a lab that people use, too.

A reservation is written down before it is asked for and forgotten when it was given back, so that the next agent of the
host gives back what one had that was killed. A hook that fails or takes too long costs its device alone.
"""

import http.client
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import local as local_device
from device_runner import safe_text, untrusted_files
from device_runner.errors import RunnerError
from pipeline.config import tables as config_tables
from pipeline.core import file_names
from pipeline.core import files as storage
from pipeline.core import toml as core_toml
from pipeline.core.errors import ConfigError, MissingError

log = logging.getLogger(__name__)

PLACES = ("device", "serial", "host")
"""What may stand in braces in a hook: the lab's name of the device, its part after the kind, and this host."""

ENDED_PLACES = ("file",)
"""What may stand in braces in the hook `ended`: the path of the JSON file about the campaign."""

PLACE = re.compile(r"\{([a-z_]+)\}")
"""Other braces are those of JSON, or of a shell."""

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/?=&+,~ -]*")
"""Names that are handed to hooks: none can be read as an option, or end a text in quotes."""

MOST_ANSWER = 400
"""Characters of what a hook said, in the reason."""

WORK_PREFIX = "ort-mobile-hook-"

MOST_HELD_SECONDS = 3600.0
"""For how long a device stays reserved from campaign to campaign: then it is given back between two, for who waits."""

MOST_TRIES = 5
"""How often a release hook that fails is called in the life of an agent."""


class HookError(RunnerError):
    """A hook did not do what it is for."""


class HookLateError(HookError):
    """A hook ran out of time: what it has done is not known."""


class Hook(config_tables.Table, frozen=True, kw_only=True):
    """What is called: a command, each argument as it is (no shell), or a URL. {device}, {serial} and {host} are filled
    in.
    """

    command: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """The program and its arguments; it has done its part when it ends with 0."""
    url: str = ""
    """An http or https address in place of a command; 200 to 299 will do as an answer, and nobody else is asked."""
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = "POST"
    """Of the request to the URL."""
    json: dict[str, Any] | None = None
    """What the request carries, as JSON; names in braces are filled in within its texts."""
    token_file: str | None = None
    """A file, beside this one or by its whole path, whose text is sent as `Authorization: Bearer TEXT`."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    """After so long the hook has failed; a command is ended then."""


class Hooks(config_tables.Table, frozen=True, kw_only=True):
    """The file of `lab work --hooks`."""

    reserve: Hook | None = None
    """Called before a device is taken; where it fails, the device is not taken, and asked for again later."""
    release: Hook | None = None
    """Called after a device was given back, whatever came of its runs; again later where it fails."""
    ended: Hook | None = None
    """Told of the end of each campaign, once: a command finds a JSON file as {file}, a URL gets its content."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A device that was asked for and not given back yet, as the state folder keeps it."""

    device: str
    host: str


def read_hooks(path: Path) -> Hooks:
    """The hooks of a file; raises ConfigError for what they cannot be, MissingError for no file."""
    remedy = "docs/lab.md has examples: [reserve] and [release] with `command` or `url`"
    try:
        text = untrusted_files.read_regular(path).decode()
    except FileNotFoundError as error:
        raise MissingError("there is no such file", where=str(path), remedy="name the file of --hooks") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the file cannot be read", where=str(path), why=str(error), remedy=remedy) from error
    try:
        hooks = msgspec.convert(core_toml.read_toml(text, str(path), remedy), Hooks)
    except msgspec.ValidationError as error:
        raise ConfigError("this is no file of hooks", where=str(path), why=str(error), remedy=remedy) from error

    def checked(name: str, hook: Hook | None, places: tuple[str, ...] = PLACES) -> Hook | None:
        if hook is None:
            return None
        texts = [*hook.command, hook.url, *_texts(hook.json)]
        unknown = [placeholder for text in texts for placeholder in PLACE.findall(text) if placeholder not in places]
        why = ""
        if bool(hook.command) == bool(hook.url):
            why = "it needs either `command` or `url`"
        elif hook.command and (hook.json is not None or hook.token_file or hook.method != "POST"):
            why = "`method`, `json` and `token_file` belong to a `url`"
        elif hook.url and not is_web_address(hook.url):
            why = f"{safe_text.visible(hook.url)!r} is no http or https address"
        elif PLACE.search(urlsplit(hook.url).netloc):
            why = "a name in braces cannot stand for a server"
        elif unknown:
            why = f"{{{unknown[0]}}} is none of {', '.join(f'{{{placeholder}}}' for placeholder in places)}"
        if why:
            raise ConfigError(f"[{name}] cannot be called", where=str(path), why=why, remedy=remedy)
        token = hook.token_file and str(path.parent / hook.token_file)
        return msgspec.structs.replace(hook, token_file=token)

    return Hooks(
        reserve=checked("reserve", hooks.reserve),
        release=checked("release", hooks.release),
        ended=checked("ended", hooks.ended, ENDED_PLACES),
    )


def _texts(value: object) -> Iterator[str]:
    """Every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(part)


def _filled(value: Any, fill: Callable[[str], str]) -> Any:
    """A value of JSON with its texts filled in."""
    if isinstance(value, dict):
        return {key: _filled(part, fill) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, fill) for part in value]
    return fill(value) if isinstance(value, str) else value


def call(hook: Hook, name: str, reservation: Reservation) -> None:
    """Call a hook for a device; raises HookError for what it does not do, with what it said."""
    device = reservation.device
    serial = runner_device.split_server(device.removeprefix("adb:"))[0] if device.startswith("adb:") else device
    values = {"device": device, "serial": serial, "host": reservation.host}
    if bad := [value for value in values.values() if not PLAIN.fullmatch(value)]:
        raise HookError(
            f"the {name} hook is not called",
            why=f"the name {safe_text.visible(bad[0])!r} could be read as more than a name",
            remedy="give the device or host another name",
        )

    def filled(text: str, escape: Callable[[str], str] = str) -> str:
        return PLACE.sub(lambda match: escape(values[match[1]]), text)

    if hook.command:
        with runner_files.scratch_folder(WORK_PREFIX) as folder:
            said = said_by_command([filled(word) for word in hook.command], folder, hook.timeout_seconds)
    else:
        said = said_by_server(hook, filled(hook.url, lambda value: quote(value, safe="")), filled)
    remedy = "see the file of --hooks on this host"
    if said is None:
        why = f"it had not ended after {hook.timeout_seconds:g} s"
        raise HookLateError(f"the {name} hook takes too long", why=why, remedy=remedy)
    if said:
        raise HookError(f"the {name} hook failed", why=safe_text.visible(said), remedy=remedy)


def said_by_command(command: list[str], folder: Path, seconds: float) -> str | None:
    """Why a command that works in a folder did not end well, "" where it did, None where it did not end."""
    try:
        code = local_device.run_group(command, folder, seconds, os.environ)
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror or error}"
    said = " ".join(
        (local_device.tail(folder / "stderr", MOST_ANSWER) or local_device.tail(folder / "stdout", MOST_ANSWER)).split()
    )
    if code is None:
        return None
    return "" if code == 0 else f"{command[0]} ended with {code}{f': {said}' * bool(said)}"


def is_web_address(url: str) -> bool:
    """Whether a URL is asked of a server, by http or https: others open files of this computer."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "\n" not in url


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named, not for one that this names."""

    def redirect_request(self, *_: object) -> None:
        return None


def said_by_server(hook: Hook, url: str, fill: Callable[[str], str]) -> str | None:
    """Why a server did not take a request, "" where it did, None where it did not answer."""
    if not is_web_address(url):  # a database's own check knows less of addresses
        return "it is no http or https address"
    headers = {"User-Agent": "ort-mobile"}
    content = None
    if hook.json is not None:
        content = msgspec.json.encode(_filled(hook.json, fill))
        headers["Content-Type"] = "application/json"
    if hook.token_file:
        try:
            headers["Authorization"] = f"Bearer {untrusted_files.read_regular(Path(hook.token_file)).decode().strip()}"
        except (OSError, UnicodeDecodeError) as error:
            return f"{hook.token_file} cannot be read: {error}"
    said: list[str] = []

    def ask() -> None:
        request = urllib.request.Request(url, content, headers, method=hook.method)  # noqa: S310 # http(s) alone, above
        try:
            with urllib.request.build_opener(_NotFollowed).open(request, timeout=hook.timeout_seconds):
                said.append("")
        except urllib.error.HTTPError as error:
            with suppress(OSError, http.client.HTTPException):
                answer = " ".join(error.read(MOST_ANSWER).decode("utf-8", "replace").split())
                said.append(f"the server answers {error.code}{f': {answer}' * bool(answer)}")
        except TimeoutError:
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return
            said.append(f"the server cannot be asked: {getattr(reason, 'strerror', None) or reason}")

    # A server that sends a byte now and then, and a name that nobody resolves, end no time limit of a socket.
    asking = threading.Thread(target=ask, daemon=True, name="hook")
    asking.start()
    asking.join(hook.timeout_seconds)
    return said[0] if said else None


@dataclass(slots=True)
class Reservations:
    """Devices that this host reserved; `troubles` says of which a hook failed last, and why.

    `idle` are those whose part of a campaign has ended, with the time (monotonic) from which on they are reserved: they
    go on with the next campaign as they are, or are given back.
    """

    host: str
    hooks: Hooks = field(default_factory=Hooks)
    troubles: dict[str, str] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)

    @property
    def folder(self) -> Path:
        """Where they are kept; no other host of this user has the same."""
        return runner_files.state_folder() / "lab" / file_names.safe_name(self.host)

    def _file(self, device: str) -> Path:
        return self.folder / f"{file_names.safe_name(device)}.json"

    def left(self) -> list[str]:
        """Devices that were reserved and not given back, by this agent or one before it; not those that are idle."""
        devices = []
        for path in sorted(self.folder.glob("*.json")) if self.hooks.release else ():
            with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):  # nothing that was written here
                devices.append(untrusted_files.decode_json(untrusted_files.read_regular(path), Reservation).device)
        return [device for device in devices if device not in self.idle]

    @contextmanager
    def of(self, device: str) -> Iterator[None]:
        """The reservation of a device, which is idle afterwards; raises HookError where it is not had.

        After an error, and after MOST_HELD_SECONDS, it is given back at once.
        """
        if not (self.hooks.reserve or self.hooks.release):
            yield
            return
        since = self.idle.pop(device, None)
        if since is None:
            since = time.monotonic()
            self._reserve(device)
        try:
            yield
        except BaseException:
            self.give_back(device)
            raise
        if time.monotonic() - since > MOST_HELD_SECONDS:
            self.give_back(device)
        else:
            self.idle[device] = since

    def _reserve(self, device: str) -> None:
        """Call the reserve hook; raises HookError where the device is not had."""
        storage.write_bytes(self._file(device), msgspec.json.encode(Reservation(device=device, host=self.host)))
        try:
            if self.hooks.reserve:
                call(self.hooks.reserve, "reserve", Reservation(device=device, host=self.host))
        except HookError as error:
            if isinstance(error, HookLateError):
                self.give_back(device)
            else:  # it is another's
                self._forget(device)
            self.troubles[device] = f"{device}: {error.reason}"
            raise
        self.troubles.pop(device, None)

    def give_back(self, device: str) -> None:
        """Call the release hook; what fails is kept for a later time."""
        self.idle.pop(device, None)
        try:
            if self.hooks.release:
                call(self.hooks.release, "release", Reservation(device=device, host=self.host))
        except HookError as error:
            self.tries[device] += 1
            self.troubles[device] = f"{device}: {error.reason}"
            log.warning("%s", self.troubles[device])
            if self.tries[device] >= MOST_TRIES:
                self._forget(device)
        else:
            self.troubles.pop(device, None)
            self._forget(device)

    def _forget(self, device: str) -> None:
        self.tries.pop(device, None)
        self._file(device).unlink(missing_ok=True)
