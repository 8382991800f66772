"""The official conformance suite against a running web process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.principals.models import Tenant
from tests.factories import make_token
from tests.mcp.node import run_node
from tests.server import end_server, start_server

pytestmark = pytest.mark.ci

SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"

# What these need is a request of the server's own to the client and so a session; this server has neither.
WITHOUT_BACK_CHANNEL = {
    "2026-07-28": set[str](),
    "2025-11-25": {
        "tools-call-sampling",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
    },
}


@pytest.fixture
def fixtures(acme: Tenant) -> Iterator[str]:
    """The address of a product that has what the suite looks for."""
    process, url = start_server("tests.mcp.conformance_fixtures:application", CONFORMANCE_TOKEN=make_token(acme))
    yield f"{url}/mcp"
    end_server(process)


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_the_server_passes_what_a_revision_requires(
    packages: Path, fixtures: str, revision: str, tmp_path: Path
) -> None:
    run = run_node(
        packages / SUITE, "server", "--url", fixtures, "--requirements", revision, "-o", tmp_path, check=False
    )

    required = _required(packages, revision)
    failed = {name: faults for name in required if (faults := _faults(tmp_path, name))}
    assert set(failed) == WITHOUT_BACK_CHANNEL[revision], f"{failed}\n{run.stdout[-4000:]}{run.stderr[-2000:]}"


def _required(packages: Path, revision: str) -> list[str]:
    listed = run_node(packages / SUITE, "list", "--requirements", revision)
    of_servers = listed.stdout.partition("Client scenarios")[0]
    return [line.removeprefix("  - ") for line in of_servers.splitlines() if line.startswith("  - ")]


def _faults(results: Path, scenario: str) -> list[str]:
    checks = [check for found in results.rglob(f"*{scenario}*/checks.json") for check in json.loads(found.read_text())]
    assert checks, f"{scenario} did not run"
    return [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] == "FAILURE"]
