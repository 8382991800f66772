"""Where an outgoing call may go."""

import pytest
from pytest_django import Settings

from apps.core.http import ForbiddenEndpoint, guard


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
        "https://0.0.0.0/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://[2002:7f00:1::]/",
        "https://[::127.0.0.1]/",
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
    with pytest.raises(ForbiddenEndpoint, match="loopback only"):
        guard("http://1.1.1.1/mcp")
    assert guard("https://1.1.1.1/mcp") == "1.1.1.1"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/mcp", "http://[::1]/mcp"])
def test_loopback_is_called_only_where_the_deployment_allows_it(url: str, settings: Settings) -> None:
    settings.ALLOW_LOOPBACK = True
    assert guard(url) in {"127.0.0.1", "::1"}
    settings.ALLOW_LOOPBACK = False
    with pytest.raises(ForbiddenEndpoint):
        guard(url)
