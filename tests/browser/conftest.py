"""A Chromium of this machine, driven by playwright; pages are opened as files, and every request is noted."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Browser = Any
"""playwright's types; it is installed by the session alone."""


@dataclass
class Opened:
    """A page in a window, with what it asked for and what it complained about."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no Chromium here: none of {', '.join(PROGRAMS)} is on PATH")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here: nox -s browser_tests installs it")
    with sync_api.sync_playwright() as driver:
        # A browser in a container has no user namespaces for its sandbox; the page is the session's own file.
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page's text in a window of its own; the keywords are playwright's of a context."""
    contexts: list[Any] = []

    def opened(text: str, width: int = 1280, height: int = 800, fragment: str = "", **options: Any) -> Opened:
        path = tmp_path / f"report-{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        made = Opened(page=context.new_page())
        made.page.on("request", lambda request: made.requests.append(request.url))
        made.page.on("console", lambda message: made.complaints.append(message.text))
        made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.page.goto(path.as_uri() + fragment)
        if options.get("java_script_enabled", True) and 'id="run-data"' in text:
            made.page.evaluate("document.getElementById('explore-part').scrollIntoView()")
            made.page.wait_for_selector("#explore-part[data-ready]", state="attached")
            if not fragment:
                made.page.evaluate("scrollTo(0, 0)")
        return made

    yield opened
    for context in contexts:
        context.close()
