"""Progress on stderr: bars in a terminal; elsewhere, as in the log of CI, a line a minute; nothing with --quiet."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from device_runner import result as run_result
from device_runner import safe_text

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

log = logging.getLogger(__name__)


MOST_PARTS = 20
"""Parts that have a line of their own: more would not fit on a screen."""


class Stage:
    """One stage of a job, or a part of one: it may say what it is at, and advance. This one shows nothing."""

    def at(self, text: str) -> None:
        """Say what is being worked on."""
        log.debug("%s", text)

    def done(self, steps: int = 1) -> None:
        """Some steps are finished."""

    def part(self, name: str, steps: int, shorter: str = "", step_seconds: float | None = None) -> "Stage":
        """A part that goes on beside others: it says for itself what it is at, and its steps are the stage's too.

        `shorter` is how to do less, said with the estimate of a long one; `step_seconds` is what a step is expected to
        take: with it a long one is announced before its first step.
        """
        return self


class Progress(Protocol):
    """Shows the stages of a job."""

    def stage(self, name: str, steps: int) -> contextlib.AbstractContextManager[Stage]:
        """A stage of so many steps, shown until the block ends."""

    def tell(self, line: str) -> None:
        """Show a line of its own, between stages."""


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a job as it was: on which computer, from when, for how long."""

    name: str
    steps: int
    started_at: str
    elapsed_ns: int
    host: str = ""


class StageLog:
    """Shows progress as another does, and keeps when each stage was."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self.stages: list[StageTime] = []

    def tell(self, line: str) -> None:
        """The line of the other."""
        self._shown.tell(line)

    @contextlib.contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Stage]:
        """The stage of the other, noted when it ends, in whatever way."""
        started_at, begun = run_result.utc_now(), time.monotonic_ns()
        try:
            with self._shown.stage(name, steps) as stage:
                yield stage
        finally:
            elapsed_ns = time.monotonic_ns() - begun
            self.stages.append(
                StageTime(
                    name=name, steps=steps, started_at=started_at, elapsed_ns=elapsed_ns, host=run_result.host_name()
                )
            )


WORTH_SAYING_SECONDS = 20.0
"""A shorter rest of a stage is not announced."""

LONG_SECONDS = 180.0
"""From here on a rest is long enough for a word on how to do less."""


def duration_text(seconds: float) -> str:
    """About how long: 45 s, 4 min, 1 h 10 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Pace:
    """How fast steps follow each other, and from that how long the rest takes. Parts go on side by side."""

    def __init__(self, steps: int, shorter: str = "", expected_seconds: float | None = None) -> None:
        self.steps = steps
        self.shorter = shorter
        self.expected_seconds = expected_seconds
        self.finished = 0
        self.start = time.monotonic()
        self.parts: dict[str, Pace] = {}

    @property
    def elapsed_seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.start

    @property
    def step_seconds(self) -> float | None:
        """The mean of a step; before the first has ended what is expected, or None."""
        return self.elapsed_seconds / self.finished if self.finished else self.expected_seconds

    @property
    def left_seconds(self) -> float | None:
        """How long the rest takes; of several parts the slowest counts. None before it is known of any."""
        if self.parts:
            seconds = [left for part in self.parts.values() if (left := part.left_seconds) is not None]
            return max(seconds, default=None)
        return None if self.step_seconds is None else self.step_seconds * (self.steps - self.finished)

    @property
    def count(self) -> str:
        """The steps of a stage that is over: 70, or "12 of 70" where it ended early."""
        return f"{self.steps}" if self.finished >= self.steps else f"{self.finished} of {self.steps}"

    def announcement(self, name: str) -> str:
        """The estimate before the first step of a long rest."""
        return self.estimate(name) if (self.left_seconds or 0) >= LONG_SECONDS else ""

    def estimate(self, name: str) -> str:
        """The rest in words: about 4 min left: 19 of 20 steps of about 12 s on local."""
        if self.left_seconds is None or self.step_seconds is None or self.left_seconds < WORTH_SAYING_SECONDS:
            return ""
        rest = f"{self.steps - self.finished} of {self.steps} runs of about {duration_text(self.step_seconds)}"
        shorter = f"; {self.shorter}" if self.shorter and self.left_seconds >= LONG_SECONDS else ""
        return f"about {duration_text(self.left_seconds)} left: {rest} on {name}{shorter}"


class NoProgress:
    """Shows nothing; times go to the log."""

    def tell(self, line: str) -> None:
        """Log the line."""
        log.info("%s", line)

    @contextlib.contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Stage]:
        """Log how long the stage took."""
        start = time.perf_counter()
        yield Stage()
        log.info("%s: %d steps in %.2f s", name, steps, time.perf_counter() - start)


class Terminal:
    """Bars on stderr that end in a line with the stage's time."""

    def tell(self, line: str) -> None:
        """A line on stderr."""
        say(line)

    @contextlib.contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Stage]:
        """Show a bar while the block runs, and its time when it ended well."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console, pace = Console(stderr=True, highlight=False), Pace(steps)
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[text]}", style="dim"),
        )
        with Progress(*columns, console=console, transient=True) as bars:
            yield _BarStage(bars, name, pace)
        console.print(f"[green]✓[/] {name:<10} {pace.count:>4} in {pace.elapsed_seconds:.1f} s")


class _BarStage(Stage):
    def __init__(
        self, bars: "RichProgress", name: str, pace: Pace, whole: "_BarStage | None" = None, *, visible: bool = True
    ) -> None:
        self._bars = bars
        self._task = bars.add_task(name, total=pace.steps, text="", left="", visible=visible)
        self._whole = whole
        self._name = name
        self.pace = pace

    def at(self, text: str) -> None:
        from rich.markup import escape

        self._bars.update(self._task, text=escape(text))

    def done(self, steps: int = 1) -> None:
        self.pace.finished += steps
        left = self.pace.left_seconds or 0
        self._bars.update(
            self._task, advance=steps, left=f"{duration_text(left)} left" if left > WORTH_SAYING_SECONDS else ""
        )
        if self._whole:
            self._whole.done(steps)
            if self.pace.finished == steps and (line := self.pace.estimate(self._name.strip())):
                self._bars.console.print(f"  {line}")

    def part(self, name: str, steps: int, shorter: str = "", step_seconds: float | None = None) -> Stage:
        from rich.markup import escape

        pace, visible = Pace(steps, shorter, step_seconds), len(self.pace.parts) < MOST_PARTS
        part = _BarStage(self._bars, f"  {escape(name)}", pace, self, visible=visible)
        self.pace.parts[name] = part.pace
        if line := pace.announcement(name):
            self._bars.console.print(f"  {escape(line)}")
        return part


MINUTE_SECONDS = 60.0


class Lines:
    """Plain lines for logs: at the start and the end of each stage, and one a minute in between."""

    def __init__(self, every_seconds: float = MINUTE_SECONDS) -> None:
        self.every_seconds = every_seconds

    def tell(self, line: str) -> None:
        """A line on stderr."""
        say(line)

    @contextlib.contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Stage]:
        """Say that the stage starts, what it is at every minute, and how long it took when it ended well."""
        stage, ended = _LineStage(name, Pace(steps)), threading.Event()

        def watch() -> None:
            while not ended.wait(self.every_seconds):
                stage.say()

        say(f"{name}: {steps or 'nothing'} to do")
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield stage
        finally:
            ended.set()
            watcher.join()
        if steps:
            say(f"{name}: done, {stage.pace.count} in {stage.pace.elapsed_seconds:.1f} s")


def say(line: str) -> None:
    """One line on stderr; nobody reading it is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{safe_text.visible(line)}\n")
        sys.stderr.flush()


class _LineStage(Stage):
    def __init__(self, name: str, pace: Pace, whole: "_LineStage | None" = None) -> None:
        self.name = name
        self.pace = pace
        self._whole = whole
        self._text = ""

    def at(self, text: str) -> None:
        self._text = text
        if self._whole:
            self._whole.at(f"{self.name}: {text}")

    def done(self, steps: int = 1) -> None:
        self.pace.finished += steps
        if self._whole:
            self._whole.done(steps)
            if self.pace.finished == steps and (line := self.pace.estimate(self.name)):
                say(f"{self._whole.name}: {line}")

    def part(self, name: str, steps: int, shorter: str = "", step_seconds: float | None = None) -> Stage:
        part = _LineStage(name, Pace(steps, shorter, step_seconds), self)
        self.pace.parts[name] = part.pace
        if line := part.pace.announcement(name):
            say(f"{self.name}: {line}")
        return part

    def say(self) -> None:
        """Where it is, for how long, and how long the rest takes."""
        left = self.pace.left_seconds
        rest = "" if left is None else f", about {duration_text(left)} left"
        text = f" ({self._text})" if self._text else ""
        spent = duration_text(self.pace.elapsed_seconds)
        say(f"{self.name}: {self.pace.finished} of {self.pace.steps} after {spent}{rest}{text}")


def progress_for(*, quiet: bool = False) -> Progress:
    """Bars where stderr is a terminal, lines elsewhere, nothing where it is not wanted."""
    if quiet:
        return NoProgress()
    return Terminal() if sys.stderr.isatty() else Lines()
