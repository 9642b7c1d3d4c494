"""Files are whole or not there; names are safe."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.safe_text import visible
from pipeline.core.errors import DiskError, PipelineError
from pipeline.core.file_names import readable_name, safe_name  # fmt: skip
from pipeline.core.files import make_folder, replacing, scratch, sha256_of, storage_errors, write_bytes, write_text


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_bytes(b"half of the ne" + bytes([1 // 0]))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_bytes(tmp_path / "f", b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_is_named_with_its_remedy(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(PipelineError) as caught, replacing(tmp_path / "f"):
        Path("/dev/full").write_bytes(b"x")
    assert "No space left" in caught.value.why
    assert "free some space" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_takes_nothing_has_the_exit_code_of_what_is_missing(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskError) as caught, storage_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == 3


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(PipelineError) as caught:
        make_folder(tmp_path / "f" / "g")
    assert "a file stands where a folder is needed" in caught.value.remedy


def test_digest_is_sha256(tmp_path: Path) -> None:
    write_bytes(tmp_path / "f", b"abc")
    assert sha256_of(tmp_path / "f").startswith("ba7816bf8f01cfea")


@given(st.text(max_size=200), st.text(max_size=200))
def test_names_are_safe_and_safe_names_differ_where_the_texts_do(one: str, other: str) -> None:
    for name in (safe_name(one), readable_name(one)):
        assert name not in ("", ".", "..")
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
        assert not name.startswith((".", "-"))
        assert len(name) <= 100
    assert (safe_name(other) == safe_name(one)) == (one == other)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my model \u00e9", "my_model_e"), ("my model e\u0301", "my_model_e"), ("m-1.2_x", "m-1.2_x"),
        ("\u6a21\u578b", safe_name("\u6a21\u578b")), ("...", safe_name("...")), ("x" * 99, safe_name("x" * 99)),
    ],
)  # fmt: skip
def test_readable_names_keep_every_letter_or_have_a_digest(text: str, name: str) -> None:
    assert readable_name(text) == name


def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_bytes(pipe, b"content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_folder_that_an_error_leaves_empty_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    for name in ("before", "new"):
        with pytest.raises(ZeroDivisionError), scratch(tmp_path / name) as work:
            (work / "half").write_bytes(bytes([1 // 0]))
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize(
    "hidden", ["\xad", "\u034f", "\u115f", "\u180e", "\u2064", "\u206a", "\u3164", "\ufffb", "\U000e0041"]
)
def test_what_is_shown_as_nothing_is_written_out(hidden: str) -> None:
    text = visible(f"a{hidden}b é 日本 😀")
    assert hidden not in text
    assert text.endswith("b é 日本 😀")
