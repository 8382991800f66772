"""A TCP proxy before the hub: it passes everything on, but what a test tells it to lose."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Proxy:
    """Where it listens, and what it loses."""

    url: str
    target: tuple[str, int]
    dropped: int = 0
    """How many replies were lost: the hub had answered, and nobody heard it."""
    turned_away: int = 0
    """How many connections came while it was cut."""
    is_cut: bool = False
    """Whether no connection lasts, as if the hub were away."""
    loses: Callable[[], bool] = lambda: False
    """Asked of each reply that nobody has said anything about."""
    _to_drop: list[bytes] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: set[socket.socket] = field(default_factory=set)

    def drop_reply_to(self, path: str) -> None:
        """Lose the reply to the next request whose first line ends its path so."""
        self._to_drop.append(f"{path} HTTP/1.1".encode())

    def cut(self) -> None:
        self.is_cut = True
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self.is_cut = False

    def pass_on(self, near: socket.socket) -> None:
        """One connection, to its end. Requests come one after the other, their heads in one piece: they are small."""
        if self.is_cut:
            self.turned_away += 1
            near.close()
            return
        with near, socket.create_connection(self.target) as far:
            self._open |= {near, far}
            asked: list[bytes] = []
            back = threading.Thread(target=self._answer, args=(near, far, asked), daemon=True)
            back.start()
            with suppress(OSError):
                while piece := near.recv(1 << 20):
                    if piece.startswith(
                        (b"GET ", b"POST ", b"PUT ", b"DELETE ")
                    ):  # else it is the body of the request before
                        asked.append(piece.partition(b"\r\n")[0])
                    far.sendall(piece)
            with suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            back.join()
            self._open -= {near, far}

    def _answer(self, near: socket.socket, far: socket.socket, asked: list[bytes]) -> None:
        with suppress(OSError):
            while (piece := far.recv(1 << 20)) and not self._loses(asked[-1]):
                near.sendall(piece)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)

    def _loses(self, first_line: bytes) -> bool:
        with self._lock:
            for ending in self._to_drop:
                if first_line.endswith(ending):
                    self._to_drop.remove(ending)
                    self.dropped += 1
                    return True
            if self.loses():
                self.dropped += 1
                return True
        return self.is_cut


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """A proxy on loopback for as long as the block lasts."""
    parts = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(url=f"http://127.0.0.1:{listener.getsockname()[1]}", target=(parts.hostname or "", parts.port or 80))

    def listen() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=proxy.pass_on, args=(near,), daemon=True).start()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        proxy.cut()
        thread.join()
