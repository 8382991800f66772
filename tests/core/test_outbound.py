"""Outgoing calls: what comes back, and each way in which nothing does."""

import gzip
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from apps.core.outbound import Answer, AnswerTooLarge, CallFailed, Disconnected, NotCalled, TimedOut, Unreachable
from tests import remote as remotes
from tests.remote import Remote, says


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remotes.serving() as running:
        yield running


def post(url: str, *, seconds: float = 10) -> Answer:
    return outbound.post(
        url, body=b'{"a": 1}', headers={"X-Secret": "hush"}, deadline=timedelta(seconds=seconds), max_answer_bytes=1000
    )


@pytest.mark.parametrize("status", [200, 204, 304, 404, 409, 500, 503])
def test_answer_of_any_status_is_returned(remote: Remote, status: int) -> None:
    remote.always = says(status, b"" if status in {204, 304} else b"said", Retry_After="7")

    answer = post(f"{remote.url}/door?x=1")

    assert (answer.status, answer.headers["retry-after"]) == (status, "7")
    assert answer.body == (b"" if status in {204, 304} else b"said")
    (received,) = remote.received
    assert (received.path, received.body, received.headers["X-Secret"]) == ("/door?x=1", b'{"a": 1}', "hush")
    assert received.headers["Accept-Encoding"] == "identity"


def test_closed_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(Unreachable) as failure:
        post(f"http://127.0.0.1:{port}/")

    assert not failure.value.reached


def test_unresolved_name_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        post("https://no-such-host.invalid/")


@pytest.mark.parametrize("url", ["http://10.0.0.8/", "https://169.254.169.254/latest", "ftp://127.0.0.1/"])
def test_forbidden_address_is_not_called(url: str) -> None:
    with pytest.raises(NotCalled) as failure:
        post(url)

    assert not failure.value.reached


def test_loopback_needs_the_deployments_permission(remote: Remote, settings: Settings) -> None:
    settings.ALLOW_LOOPBACK = False

    with pytest.raises(NotCalled):
        post(remote.url)

    assert not remote.received


@pytest.mark.parametrize("behaviour", [remotes.hangs, remotes.drips])
def test_answer_is_cut_at_the_deadline(remote: Remote, behaviour: remotes.Behaviour) -> None:
    remote.always = behaviour

    with pytest.raises(TimedOut) as failure:
        post(remote.url, seconds=0.5)

    assert failure.value.reached


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


def test_broken_connection_counts_as_reached(remote: Remote) -> None:
    remote.always = remotes.hangs_up

    with pytest.raises(Disconnected) as failure:
        post(remote.url)

    assert failure.value.reached
    assert len(remote.received) == 1


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


def test_answer_over_the_limit_is_refused(remote: Remote) -> None:
    remote.always = remotes.floods

    with pytest.raises(AnswerTooLarge):
        post(remote.url)


@pytest.mark.parametrize("behaviour", [remotes.floods, remotes.drips])
def test_answer_without_body_returns_after_its_head(remote: Remote, behaviour: remotes.Behaviour) -> None:
    remote.always = behaviour

    answer = outbound.post(remote.url, body=b"{}", headers={}, deadline=timedelta(seconds=20), max_answer_bytes=0)

    assert (answer.status, answer.body) == (200, b"")


def test_compressed_answer_is_not_unpacked(remote: Remote) -> None:
    packed = gzip.compress(b"x" * 100_000)
    remote.always = says(200, packed, Content_Encoding="gzip")

    assert post(remote.url).body == packed


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_environment_proxy_is_not_used(remote: Remote, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with remotes.serving() as proxy:
        monkeypatch.setenv(name, proxy.url)

        assert post(f"{remote.url}/door").status == 200

    assert (len(remote.received), proxy.received) == (1, [])


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


@pytest.mark.usefixtures("trusted", "looked_up")
def test_tls_refuses_a_certificate_of_another_name(tmp_path: Path) -> None:
    with certified("elsewhere.test", tmp_path) as there:
        with pytest.raises(Unreachable) as failure:
            post(there.remote.url.replace("127.0.0.1", "remote.test"))
        assert not there.remote.received

    assert not failure.value.reached


@pytest.mark.usefixtures("looked_up")
def test_tls_refuses_an_untrusted_certificate(tmp_path: Path) -> None:
    with certified("remote.test", tmp_path) as there:
        with pytest.raises(Unreachable):
            post(there.remote.url.replace("127.0.0.1", "remote.test"))
        assert not there.remote.received


def test_failure_does_not_quote_the_request(remote: Remote) -> None:
    remote.always = remotes.hangs_up

    with pytest.raises(CallFailed) as failure:
        post(remote.url)

    assert "hush" not in str(failure.value)
