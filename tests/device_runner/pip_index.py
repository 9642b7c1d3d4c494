"""A package index on this computer that pip asks: onnxruntime's wheels with a library of a few bytes."""

import contextlib
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

RELEASE = "99.1.0"
"""A release that nobody knows the digest of."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and writes no log."""

    def log_message(self, *_: object) -> None:
        pass


def wheel_name(release: str = RELEASE) -> str:
    return f"onnxruntime-{release}-py3-none-manylinux_2_28_aarch64.whl"


def wheel(library: bytes, release: str = RELEASE) -> bytes:
    """A wheel that pip takes."""
    info = f"onnxruntime-{release}.dist-info"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"onnxruntime/capi/libonnxruntime.so.{release}", library)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {release}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return content.getvalue()


@contextlib.contextmanager
def index(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, *, digest: str | None = None, release: str = RELEASE
) -> Iterator[str]:
    """The address of an index with one wheel, which pip is configured to ask; `digest` "" states none."""
    place = folder / "simple/onnxruntime"
    place.mkdir(parents=True)
    name = wheel_name(release)
    (place / name).write_bytes(content)
    stated = hashlib.sha256(content).hexdigest() if digest is None else digest
    (place / "index.html").write_text(f'<a href="{name}{stated and f"#sha256={stated}"}">{name}</a>')
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://somebody:secret@127.0.0.1:{server.server_port}/simple")
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()
