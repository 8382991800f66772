"""Outgoing calls: where they may go, what comes back, and each way in which nothing does."""

import gzip
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pytest_django import Settings

from apps.core import outbound
from apps.core.outbound import (
    Answer,
    AnswerTooLarge,
    CallFailed,
    Disconnected,
    ForbiddenEndpoint,
    TimedOut,
    Unreachable,
    UnresolvedHost,
    guard,
)
from tests import remote as remotes
from tests.remote import Remote, says
from tests.waiters import until


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remotes.serving() as running:
        yield running


def post(url: str, *, seconds: float = 10) -> Answer:
    return outbound.send(
        url, body=b'{"a": 1}', headers={"X-Secret": "hush"}, deadline=timedelta(seconds=seconds), max_answer_bytes=1000
    )


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "http:///nowhere",
        "https://user:word@127.0.0.1/",
        "http://10.0.0.1/mcp",
        "https://192.168.1.1/mcp",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/",
        "https://[fec0::1]/",
        "https://0.0.0.0/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://[2002:7f00:1::]/",
        "https://[::127.0.0.1]/",
        "https://[::ffff:0:10.0.0.8]/",
        "https://224.0.0.1/",
        "https://[ff02::1]/",
        "https://[::1",
        "https://[x]/",
        "https://127.0.0.1:99999/",
        "file:///etc/passwd",
        "http://0177.0.0.1:8080/",
        "https://010.8.8.8/",
        "https://192.0.0.8/",
        "https://[64:ff9b:1::808:808]/",
        "https://[3fff::1]/",
        "https://[5f00::1]/",
        "https://127.0.0.1/\x01",
    ],
)
def test_private_places_and_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(ForbiddenEndpoint):
        guard(url)


def test_plain_http_is_for_loopback_only() -> None:
    with pytest.raises(ForbiddenEndpoint, match="loopback and allowed networks only"):
        guard("http://1.1.1.1/mcp")
    assert guard("https://1.1.1.1/mcp") == "1.1.1.1"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/mcp", "http://[::1]/mcp"])
def test_loopback_needs_the_deployments_permission(url: str, settings: Settings) -> None:
    settings.ALLOW_LOOPBACK = True
    assert guard(url) in {"127.0.0.1", "::1"}
    settings.ALLOW_LOOPBACK = False
    with pytest.raises(ForbiddenEndpoint):
        guard(url)


def test_allowed_network_is_called_and_no_other(settings: Settings) -> None:
    settings.ALLOW_LOOPBACK = False
    settings.ALLOWED_NETWORKS = [ip_network("10.8.0.0/16"), ip_network("fd00:8::/32")]

    for url in ("http://10.8.0.1:9000/mcp", "https://10.8.255.255/", "http://[fd00:8::1]/"):
        assert guard(url)
    for url in (
        "http://10.9.0.1/",
        "https://10.9.0.1/",
        "https://[::ffff:10.8.0.1]/",
        "http://1.1.1.1/",
        "http://127.0.0.1/",
    ):
        with pytest.raises(ForbiddenEndpoint):
            guard(url)


def test_name_partly_outside_the_allowed_networks_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ALLOWED_NETWORKS = [ip_network("10.8.0.0/16")]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in ("10.8.0.1", "10.9.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_rest, **_options: found)

    with pytest.raises(ForbiddenEndpoint, match=r"10\.9\.0\.1"):
        guard("https://worker.inside/mcp")


@pytest.mark.parametrize("status", [200, 204, 304, 404, 409, 500, 503])
def test_answer_of_any_status_is_returned(remote: Remote, status: int) -> None:
    remote.always = says(status, b"" if status in {204, 304} else b"said", Retry_After="7")

    answer = post(f"{remote.url}/door?x=1")

    assert (answer.status, answer.headers["retry-after"]) == (status, "7")
    assert answer.body == (b"" if status in {204, 304} else b"said")
    (received,) = remote.received
    assert (received.path, received.body, received.headers["X-Secret"]) == ("/door?x=1", b'{"a": 1}', "hush")
    assert received.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://no-such-host.invalid/", UnresolvedHost),
        ("http://127.0.0.1:9/", Unreachable),
        ("http://10.0.0.8/", ForbiddenEndpoint),
        ("ftp://127.0.0.1/", ForbiddenEndpoint),
    ],
)
def test_nothing_is_sent_to_an_unreachable_or_forbidden_place(url: str, fault: type[CallFailed]) -> None:
    with pytest.raises(fault) as failure:
        post(url)
    assert not failure.value.reached


@pytest.mark.parametrize(
    ("behaviour", "fault"),
    [
        (remotes.hangs, TimedOut),
        (remotes.drips, TimedOut),
        (remotes.hangs_up, Disconnected),
        (remotes.floods, AnswerTooLarge),
    ],
)
def test_answer_is_bounded_and_the_failure_quotes_nothing(
    remote: Remote, behaviour: remotes.Behaviour, fault: type[CallFailed]
) -> None:
    remote.always = behaviour
    with pytest.raises(fault) as failure:
        post(remote.url, seconds=0.5)
    assert failure.value.reached
    assert "hush" not in str(failure.value)
    until(lambda: remote.received, "it was not called", seconds=10)  # which notes the call in a thread of its own
    assert len(remote.received) == 1


def test_name_lookup_counts_against_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def never(*_: Any, **__: Any) -> Any:
        answered.wait()
        raise OSError("too late")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", never)
        with pytest.raises(TimedOut):
            post("https://slow-names.test/", seconds=0.3)
        answered.set()


def test_answer_that_is_not_http_is_a_broken_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            connection, _ = listener.accept()
            connection.recv(65_536)
            connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
            connection.close()

        babbling = threading.Thread(target=babble)
        babbling.start()
        with pytest.raises(Disconnected):
            post(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        babbling.join()


def test_redirect_is_not_followed(remote: Remote) -> None:
    with remotes.serving() as elsewhere:
        remote.always = says(307, b"", Location=elsewhere.url)
        with pytest.raises(outbound.Redirected):
            post(remote.url)
        assert not elsewhere.received


@pytest.mark.parametrize("behaviour", [remotes.floods, remotes.drips])
def test_answer_without_body_returns_after_its_head(remote: Remote, behaviour: remotes.Behaviour) -> None:
    remote.always = behaviour

    answer = outbound.send(remote.url, body=b"{}", headers={}, deadline=timedelta(seconds=20), max_answer_bytes=0)

    assert (answer.status, answer.body) == (200, b"")


def test_compressed_answer_is_not_unpacked(remote: Remote) -> None:
    packed = gzip.compress(b"x" * 100_000)
    remote.always = says(200, packed, Content_Encoding="gzip")

    assert post(remote.url).body == packed


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The look-ups of remote.test, which is on loopback the first time and nowhere after that."""
    names: list[str] = []
    real = socket.getaddrinfo

    def once(host: Any, *rest: Any, **options: Any) -> Any:
        if host == "remote.test":
            names.append(host)
            if len(names) > 1:
                raise OSError("a second look-up could lead elsewhere")
            host = "127.0.0.1"
        return real(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    return names


def test_checked_address_is_the_one_connected_to(remote: Remote, looked_up: list[str]) -> None:
    assert post(remote.url.replace("127.0.0.1", "remote.test")).status == 200
    assert looked_up == ["remote.test"]
    assert remote.received[0].headers["Host"].startswith("remote.test:")


@dataclass
class Certified:
    """A server with a certificate, and the names that callers asked it for."""

    remote: Remote
    asked_for: list[str | None]


@contextmanager
def certified(name: str, folder: Path) -> Iterator[Certified]:
    """A remote that proves this name by a certificate, which is its own authority's."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(names, names, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    stored = folder / "certificate.pem"
    stored.write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = folder / "key.pem"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(stored, secret)
    asked_for: list[str | None] = []
    tls.sni_callback = lambda _socket, asked, _context: asked_for.append(asked)
    with remotes.serving(tls=tls) as running:
        yield Certified(running, asked_for)


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `certified` writes is an authority that this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    outbound._trust.cache_clear()
    yield
    outbound._trust.cache_clear()


@pytest.mark.usefixtures("trusted")
def test_tls_checks_the_name_at_the_checked_address(tmp_path: Path, looked_up: list[str]) -> None:
    with certified("remote.test", tmp_path) as there:
        answer = post(there.remote.url.replace("127.0.0.1", "remote.test"))

    assert answer.status == 200
    assert (looked_up, there.asked_for) == (["remote.test"], ["remote.test"])
    (received,) = there.remote.received
    assert received.headers["Host"].startswith("remote.test:")


@pytest.mark.usefixtures("looked_up")
@pytest.mark.parametrize("name", ["elsewhere.test", "remote.test"])
def test_tls_refuses_another_name_and_an_untrusted_authority(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    if name == "elsewhere.test":
        request.getfixturevalue("trusted")
    with certified(name, tmp_path) as there:
        with pytest.raises(Unreachable) as failure:
            post(there.remote.url.replace("127.0.0.1", "remote.test"))
        assert not there.remote.received
    assert not failure.value.reached
