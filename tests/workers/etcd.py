"""A real etcd for tests: the system's, or Debian's package unpacked beside the environment. Nothing is installed."""

import base64
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workers.installing import alone

STARTING = 60.0


def _binary() -> str:
    home = Path(sys.prefix) / "share" / "etcd"
    with alone(home):
        return shutil.which("etcd") or _unpacked(home)


def _unpacked(home: Path) -> str:
    unpacked = home / "usr/bin/etcd"
    if not unpacked.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        home.mkdir(parents=True, exist_ok=True)
        for again in (False, True):
            if again:
                subprocess.run(["apt-get", "update"], check=False, capture_output=True)
            subprocess.run(["apt-get", "download", "etcd-server"], cwd=home, check=False, capture_output=True)
            for package in home.glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, home], check=True)
            if unpacked.exists():
                break
    if not unpacked.exists():
        pytest.skip("There is no etcd, and Debian's package of it can't be fetched here: apt install etcd-server")
    return str(unpacked)


@dataclass
class Etcd:
    """Where it answers, and what an operator or a worker would do there."""

    url: str

    def ask(self, path: str, *, token: str = "", **body: Any) -> Any:
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)  # noqa: S310  # loopback
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def put(self, key: str, value: Any, *, lease: str | None = None, token: str = "") -> int:
        content = value if isinstance(value, str) else json.dumps(value)
        body = {"key": _encoded(key), "value": _encoded(content)} | ({"lease": lease} if lease else {})
        return int(self.ask("/v3/kv/put", token=token, **body)["header"]["revision"])

    def delete(self, key: str) -> None:
        self.ask("/v3/kv/deleterange", key=_encoded(key))

    def lease(self) -> str:
        granted: str = self.ask("/v3/lease/grant", TTL=600)["ID"]
        return granted

    def revoke(self, lease: str) -> None:
        self.ask("/v3/lease/revoke", ID=lease)

    def login(self, name: str, password: str) -> str:
        token: str = self.ask("/v3/auth/authenticate", name=name, password=password)["token"]
        return token

    def guard(self, *, reader: str, password: str, prefix: str) -> None:
        """From here on nobody is answered but root, and a user who may read what begins so."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.ask("/v3/auth/user/add", name="root", password="root")
        self.ask("/v3/auth/user/add", name=reader, password=password)
        self.ask("/v3/auth/role/add", name="root")
        self.ask("/v3/auth/role/add", name="reads")
        permission = {"permType": "READ", "key": _encoded(prefix), "range_end": _encoded(end)}
        self.ask("/v3/auth/role/grant", name="reads", perm=permission)
        self.ask("/v3/auth/user/grant", user="root", role="root")
        self.ask("/v3/auth/user/grant", user=reader, role="reads")
        self.ask("/v3/auth/enable")

    def compact(self, revision: int) -> None:
        self.ask("/v3/kv/compaction", revision=revision, physical=True)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextmanager
def serving(data: Path) -> Iterator[Etcd]:
    """An etcd of its own on loopback, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        client, peer = (f"http://127.0.0.1:{taken.getsockname()[1]}" for taken in (one, other))
    process = subprocess.Popen(
        [
            _binary(),
            *("--data-dir", data, "--listen-client-urls", client, "--advertise-client-urls", client),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"default={peer}",
            ),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _ready(Etcd(client))
    finally:
        process.terminate()
        process.wait(10)


def _ready(etcd: Etcd) -> Etcd:
    give_up = time.monotonic() + STARTING
    while time.monotonic() < give_up:
        try:
            etcd.ask("/v3/kv/range", key=_encoded("ready"))
        except OSError:
            time.sleep(0.1)
        else:
            return etcd
    raise AssertionError("etcd does not answer")
