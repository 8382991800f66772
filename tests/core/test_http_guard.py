"""Where an outgoing call may go."""

import socket
from ipaddress import ip_network

import pytest
from pytest_django import Settings

from apps.core.outbound import ForbiddenEndpoint, guard


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
        "https://no-such-host.invalid/",
        "https://127.0.0.1:99999/",
        "file:///etc/passwd",
        "http://0177.0.0.1:8080/",
        "https://010.8.8.8/",
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


def test_a_name_that_leads_only_partly_into_an_allowed_network_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ALLOWED_NETWORKS = [ip_network("10.8.0.0/16")]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in ("10.8.0.1", "10.9.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_rest, **_options: found)

    with pytest.raises(ForbiddenEndpoint, match=r"10\.9\.0\.1"):
        guard("https://worker.inside/mcp")
