"""What a command does with its result: text for people, JSON, files for a CI, and the exit code."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from pipeline.cli.command import QUIET

if TYPE_CHECKING:
    from pipeline.report.ci import CiDocument
    from pipeline.report.wording import Part

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])
DOCUMENT_VERSION = 1
"""Of JSON documents whose type has no version of its own."""


def quiet() -> bool:
    """Whether --quiet is given: no tables, no progress."""
    return bool(click.get_current_context().meta.get(QUIET))


def write_result(json_text: bytes, destination: str) -> None:
    """Write JSON, indented, to a file, or to stdout for `-`."""
    import msgspec

    from pipeline.core.files import write_bytes

    text = msgspec.json.format(json_text, indent=1) + b"\n"
    if destination == "-":
        click.echo(text, nl=False)
    else:
        write_bytes(Path(destination), text)


@dataclass(slots=True)
class Outputs:
    """Where the result of a command goes: the keyword `outputs` that `json_option`, `ci_options` and others give."""

    json_to: str | None = None
    markdown_to: Path | None = None
    junit_to: Path | None = None
    sarif_to: Path | None = None

    @property
    def text(self) -> bool:
        """Whether the result is for people: neither --quiet, nor JSON on stdout, where nothing else may stand."""
        return self.json_to != "-" and not quiet()

    def write_json(self, document: Any) -> None:
        """Write a document as indented JSON where it is asked for: an object with a `version`, always."""
        import msgspec

        if self.json_to:
            version = {"version": DOCUMENT_VERSION}
            write_result(msgspec.json.encode({**version, **msgspec.to_builtins(document)}), self.json_to)

    @property
    def for_ci(self) -> bool:
        """Whether `write_ci` has anything to write."""
        files = self.junit_to or self.sarif_to or self.markdown_to
        return bool(files or os.environ.get("GITHUB_ACTIONS") or os.environ.get("GITHUB_STEP_SUMMARY"))

    def write_ci(self, document: "CiDocument") -> None:
        """Write the files that are asked for; in GitHub Actions also annotations on stderr and the step's summary."""
        from pipeline import __version__
        from pipeline.core.files import write_bytes, write_text
        from pipeline.report import ci

        if self.junit_to:
            write_bytes(self.junit_to, ci.junit(document.name, document.cases))
        if self.sarif_to:
            write_bytes(self.sarif_to, ci.sarif(document.findings, __version__))
        if self.markdown_to:
            write_text(self.markdown_to, document.summary)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in ci.annotations(document.findings):
                click.echo(line, err=True)
        if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) and document.summary:
            try:
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(f"{document.summary}\n")
            except OSError as error:
                click.echo(f"the step's summary was not written: {summary}: {error.strerror}", err=True)

    def show_errors(self, lines: Iterable[str]) -> None:
        """What went wrong, on stderr, where no text says it: with --quiet, or JSON on stdout."""
        from device_runner.files import visible

        for line in () if self.text else lines:
            click.echo(f"{click.style('error:', fg='red', bold=True)} {visible(line)}", err=True)

    def finish(
        self,
        document: Any,
        parts: "Iterable[Part]",
        *,
        code: int = 0,
        failed: Iterable[str] = (),
        markdown: Callable[[], str] = str,
        ci: "CiDocument | None" = None,
    ) -> NoReturn:
        """Write and show a result, and end the command; `failed` are its errors, which `parts` say, too."""
        from pipeline.core.files import write_text

        if ci:
            self.write_ci(ci)
        elif self.markdown_to:
            write_text(self.markdown_to, markdown())
        self.write_json(document)
        if self.text:
            from pipeline.report.show import show

            show(parts)
        self.show_errors(failed)
        click.get_current_context().exit(code)


def output_option(name: str, **settings: Any) -> Callable[[AnyCommand], AnyCommand]:
    """An option whose value is a field of `Outputs`, by `name`."""

    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        setattr(ctx.params.setdefault("outputs", Outputs()), name, value)

    option = f"--{name.removesuffix('_to')}"
    return click.option(option, name, expose_value=False, callback=keep, **settings)


FILE = click.Path(path_type=Path, dir_okay=False)

json_option = output_option("json_to", metavar="FILE|-", help="Write the result as JSON to a file, or to stdout.")
markdown_option = output_option(
    "markdown_to", type=FILE, metavar="FILE",
    help="Write the result as Markdown of at most 60,000 characters, as for a comment on a pull request.",
)  # fmt: skip
junit_option = output_option("junit_to", type=FILE, metavar="FILE", help="Write JUnit XML: a test case for each run.")
sarif_option = output_option(
    "sarif_to", type=FILE, metavar="FILE",
    help="Write SARIF 2.1.0: failures and findings, with fingerprints that stay the same from run to run.",
)  # fmt: skip


def ci_options(command: AnyCommand) -> AnyCommand:
    """Add the three options of files for a CI to a command."""
    return junit_option(sarif_option(markdown_option(command)))
