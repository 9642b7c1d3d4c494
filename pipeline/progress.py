"""Progress for people: a line per stage while it works, silent when stderr is no terminal."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

log = logging.getLogger(__name__)


MOST_PARTS = 20
"""Parts that have a line of their own: more would not fit on a screen."""


class Stage(Protocol):
    """One stage of a job: it may say what it is at, and advance."""

    def at(self, text: str) -> None:
        """Say what is being worked on."""

    def done(self, steps: int = 1) -> None:
        """Some steps are finished."""

    def part(self, name: str, steps: int) -> "Stage":
        """A part that goes on beside others: it says for itself what it is at, and its steps are the stage's too."""


class Progress(Protocol):
    """Shows the stages of a job."""

    def stage(self, name: str, steps: int) -> contextlib.AbstractContextManager[Stage]:
        """A stage of so many steps, shown until the block ends."""


class Silent:
    """Shows nothing; times go to the log."""

    @contextlib.contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Stage]:
        """Log how long the stage took."""
        start = time.perf_counter()
        yield _SilentStage()
        log.info("%s: %d steps in %.2f s", name, steps, time.perf_counter() - start)


class _SilentStage:
    def at(self, text: str) -> None:
        log.debug("%s", text)

    def done(self, steps: int = 1) -> None:
        pass

    def part(self, name: str, steps: int) -> Stage:
        return self


class Terminal:
    """Bars on stderr that end in a line with the stage's time."""

    @contextlib.contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Stage]:
        """Show a bar while the block runs, and its time when it ended well."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, highlight=False)
        start = time.perf_counter()
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim"),
        )
        with Progress(*columns, console=console, transient=True) as bars:
            yield _BarStage(bars, name, steps)
        console.print(f"[green]✓[/] {name:<10} {steps:>4} in {time.perf_counter() - start:.1f} s")


class _BarStage:
    def __init__(
        self, bars: "RichProgress", name: str, steps: int, whole: "_BarStage | None" = None, *, visible: bool = True
    ) -> None:
        self._bars = bars
        self._task = bars.add_task(name, total=steps, text="", visible=visible)
        self._whole = whole
        self._parts = 0

    def at(self, text: str) -> None:
        from rich.markup import escape

        self._bars.update(self._task, text=escape(text))

    def done(self, steps: int = 1) -> None:
        self._bars.advance(self._task, steps)
        if self._whole:
            self._whole.done(steps)

    def part(self, name: str, steps: int) -> Stage:
        from rich.markup import escape

        self._parts += 1
        return _BarStage(self._bars, f"  {escape(name)}", steps, self, visible=self._parts <= MOST_PARTS)


def progress_for(*, quiet: bool = False) -> Progress:
    """Bars where stderr is a terminal, silence elsewhere."""
    return Terminal() if sys.stderr.isatty() and not quiet else Silent()
