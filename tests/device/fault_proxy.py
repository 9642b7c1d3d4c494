"""A TCP proxy that cuts, stalls or garbles what passes, at a chosen byte of one direction of a connection."""

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

from tests.device.adb_farm import free_port


class FaultProxy:
    """Passes connections on to a port; the next byte counts of one direction may hit a fault, until `heal`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._faults: dict[str, tuple[str, int]] = {}
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def upload(self, fault: str, place: int) -> None:
        """Fault (cut, stall, garble) in what the client sends, at the place-th byte of each connection."""
        self._faults["up"] = (fault, place)

    def download(self, fault: str, place: int) -> None:
        """As `upload`, in what the client gets."""
        self._faults["down"] = (fault, place)

    def heal(self) -> None:
        """No faults from now on."""
        self._faults.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            up = threading.Thread(target=self._pass, args=("up", client, server), daemon=True)
            up.start()
            self._pass("down", server, client)
            up.join()

    def _pass(self, way: str, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                fault, place = self._faults.get(way, ("", -1))
                if fault and passed <= place < passed + len(data):
                    data = self._hit(way, fault, data, place - passed)
                passed += len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _hit(self, way: str, fault: str, data: bytes, at: int) -> bytes:
        if fault == "cut":
            raise ConnectionAbortedError
        while fault == "stall" and self._faults.get(way, ("",))[0] == "stall":
            time.sleep(0.02)
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :] if fault == "garble" else data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
