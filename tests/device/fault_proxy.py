"""A TCP proxy that cuts, stalls or garbles what passes, at a chosen byte of one direction of a connection.

It stands between a client and an adb server, or between an adb server and an adbd.
"""

import contextlib
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.device.adb_farm import free_port


@dataclass(slots=True)
class Hit:
    """What happens once, after so many more bytes: a bit is flipped, the connection cut, or nothing passes a while."""

    fault: str
    after_bytes: int
    bit: int = 6
    seconds: float = 0.0


class FaultProxy:
    """Passes connections on to a port; the next byte counts of one direction may hit a fault, until `heal`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._faults: dict[str, tuple[str, int]] = {}
        self._once: dict[str, Hit] = {}
        self._counting = threading.Lock()
        self.hits: Counter[str] = Counter()
        """Faults that were reached."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def upload(self, fault: str, place: int) -> None:
        """Fault (cut, stall, garble) in what the client sends, at the place-th byte of each connection."""
        self._faults["up"] = (fault, place)

    def download(self, fault: str, place: int) -> None:
        """As `upload`, in what the client gets."""
        self._faults["down"] = (fault, place)

    def once(self, way: str, hit: Hit) -> None:
        """One fault in what goes `up` to the target or `down` from it, counted from now over all connections."""
        with self._counting:
            self._once[way] = hit

    def heal(self) -> None:
        """No faults from now on."""
        self._faults.clear()
        self._once.clear()

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
                target.sendall(self._hit_once(way, data))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _hit(self, way: str, fault: str, data: bytes, at: int) -> bytes:
        with self._counting:
            self.hits[fault] += 1
        if fault == "cut":
            raise ConnectionAbortedError
        while fault == "stall" and self._faults.get(way, ("",))[0] == "stall":
            time.sleep(0.02)
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :] if fault == "garble" else data

    def _hit_once(self, way: str, data: bytes) -> bytes:
        with self._counting:
            hit = self._once.get(way)
            at = hit.after_bytes if hit else 0
            if hit is None or at >= len(data):
                if hit:
                    hit.after_bytes -= len(data)
                return data
            del self._once[way]
            self.hits[hit.fault] += 1
        if hit.fault == "cut":
            raise ConnectionAbortedError
        if hit.fault == "stall":
            time.sleep(hit.seconds)
            return data
        return data[:at] + bytes([data[at] ^ 1 << hit.bit]) + data[at + 1 :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more connections."""
        self.heal()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
