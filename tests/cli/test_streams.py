"""Output in pipes and files: plain, whole, in any encoding."""

import io
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from pipeline.campaign.store import open_store
from pipeline.report.show import plain_lines, show
from pipeline.report.wording import Line, Listing, ListingNote, Section
from tests.command import ort_mobile
from tests.onnx_samples import make, save, value

ROOT = Path(__file__).resolve().parents[2]
LONG = "long-name-" * 30


def piped(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments], capture_output=True, timeout=120, cwd=cwd, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd), **environment},
    )  # fmt: skip


def cut_in_two() -> onnx.ModelProto:
    """NNAPI has no Erf: the answer says what claiming it would give, with an arrow."""
    nodes = [helper.make_node(op, [x], [y]) for op, x, y in (("Relu", "x", "a"), ("Erf", "a", "b"), ("Relu", "b", "y"))]
    return make(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [])


TABLE = Listing(
    title="a title that is longer than the table", head=("name", "count"), rows=(("x", "1"), ("long one", "1000")),
    right=("count",),
)  # fmt: skip


def test_tables_are_aligned_without_borders_or_trailing_blanks() -> None:
    assert list(plain_lines(TABLE)) == [
        "a title that is longer than the table",
        "name      count",
        "x             1",
        "long one   1000",
        "",
    ]


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    note = ListingNote(title="t", text="x", remedy="r", places=("1", "2", "3", "4"))
    show([Line((LONG, "bold"), "[not markup]"), Line(), Line("\x1b", indent=2), Section(title="S", notes=(note,))])
    assert pipe.getvalue().splitlines() == [
        f"{LONG}[not markup]",
        "",
        "  \\x1b",
        "S",
        "- t: x",
        "    1",
        "    2",
        "    3",
        "    and 1 more (--json has them all)",
        "  remedy: r",
        "",
    ]


@pytest.mark.parametrize("words", [("check", "m.onnx"), ("transform", "--list"), ("doctor", "--list")])
def test_a_narrow_terminal_gets_lines_broken_between_words(tmp_path: Path, words: tuple[str, ...]) -> None:
    save(cut_in_two(), tmp_path / "m.onnx")
    shown = ort_mobile(*words, cwd=tmp_path, FORCE_COLOR="1", COLUMNS="80").out
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert [line for line in lines if len(line) > 80 and "ort-mobile partition" not in line] == []


def test_long_paths_stay_on_one_line(workplace: Path) -> None:
    folder = f"{'deep-' * 30}out"
    done = ort_mobile("convert", "my.onnx", "--output", folder, "--level", "all", "--style", "fixed", cwd=workplace)
    assert f"operators they need: {folder}/required_operators.config" in done.out.splitlines()
    assert any(line.startswith("my  ") and "all-fixed" in line for line in done.out.splitlines())
    assert all(line == line.rstrip() for line in done.out.splitlines())


def test_perf_says_nothing_of_shipping(workplace: Path) -> None:
    line = "perf out/my.all-fixed.ort my.onnx --rounds 1 --min-runs 1 --min-seconds 0.001"
    done = ort_mobile(*line.split(), cwd=workplace)
    assert "my.all-fixed.ort" in done.out
    assert "ship" not in done.out.lower()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_every_encoding_of_stdout_will_do(encoding: str, tmp_path: Path) -> None:
    save(cut_in_two(), tmp_path / "cut.onnx")
    text = ort_mobile("partition", "cut.onnx", "--ep", "nnapi", cwd=tmp_path, encoding=encoding).out
    assert ("→" if encoding == "utf-8" else "->") in text
    assert ort_mobile("--help", encoding=encoding).out


def test_an_encoding_that_the_environment_sets_will_do(tmp_path: Path) -> None:
    save(cut_in_two(), tmp_path / "cut.onnx")
    done = piped("partition", "cut.onnx", "--ep", "nnapi", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "->" in done.stdout.decode("ascii")
    assert piped("--help", cwd=tmp_path, PYTHONIOENCODING="ascii").returncode == 0


def test_what_has_no_ascii_form_is_escaped(tmp_path: Path) -> None:
    done = ort_mobile("bundle", "verify", "日本", cwd=tmp_path, encoding="cp1252", code=2)
    assert "\\u65e5\\u672c" in done.err


STOPPED = """
import sqlalchemy as sa
from pipeline.cli.main import main

@sa.event.listens_for(sa.pool.Pool, "reset")
def stop(*_):
    raise KeyboardInterrupt

main(["report", "."])
"""


def test_a_stop_while_the_database_is_closed_shows_no_traceback(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'results.sqlite'}").close()
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, timeout=120, cwd=tmp_path, check=False, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")
