"""What is written is what was given, whatever the pieces, and its digest is right."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.model import ort_writer
from pipeline.model.ort_writer import HashingFile


@given(st.lists(st.binary(max_size=9000), max_size=8), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_pieces_become_one_file_with_its_digest(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], large: bool
) -> None:
    path = tmp_path_factory.mktemp("f") / "file"
    content = b"".join(pieces)
    with HashingFile(path, ort_writer.DIRECT_MINIMUM_BYTES if large else len(content)) as out:
        for piece in pieces:
            out.write(piece)
        assert out.finish() == hashlib.sha256(content).hexdigest()
    assert path.read_bytes() == content


def test_ranges_of_files_are_copied_through_several_buffers(tmp_path: Path) -> None:
    source = tmp_path / "source"
    content = os.urandom(3 * ort_writer.BUFFER_BYTES + 12345)
    source.write_bytes(content)
    descriptor = os.open(source, os.O_RDONLY)
    with HashingFile(tmp_path / "f", 9 << 20) as out:
        out.write(b"head")
        assert out.copy(descriptor, 100, len(content) - 100) == len(content) - 100
        assert out.copy(descriptor, len(content) - 5, 50) == 5
        digest = out.finish()
    os.close(descriptor)
    written = (tmp_path / "f").read_bytes()
    assert written == b"head" + content[100:] + content[-5:]
    assert digest == hashlib.sha256(written).hexdigest()


def test_a_file_system_that_cannot_write_directly_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = os.write, list[int]()

    def refuse_once(descriptor: int, data: memoryview) -> int:
        if not refused:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "no direct writes here")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse_once)
    with HashingFile(tmp_path / "f", 9 << 20) as out:
        out.write(b"abc" * 2_000_000)
        out.finish()
    assert refused
    assert (tmp_path / "f").read_bytes() == b"abc" * 2_000_000
