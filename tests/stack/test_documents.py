"""README, the tutorials and the how-tos, done as they are written, on an installed wheel."""

import json
import os
import re
import shlex
import socket
import sys
import sysconfig
import venv
from pathlib import Path
from textwrap import dedent
from typing import Final

import psutil
import psycopg
import pytest
import yaml

from config.stack.servers import LOGINS
from tests.commands import PATIENCE, ROOT, Ended, of_a_person, run, up

NAV: Final = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
TOLD: Final = [
    page for kind in NAV for name in ("Tutorials", "How-tos") for named in kind.get(name, ()) for page in named.values()
]
# The site's first page is README.md. The page on agents uses the token and the worker of an example.
_MORE: Final = ("tasks", "inbox", "memory", "envelopes", "recall", "planner", "executions")
PAGES: Final = [
    *("README.md", "examples/worker_python/README.md"),
    *(f"docs/{page}" for page in TOLD[1:]),
    *(f"docs/{page}.md" for page in _MORE),
]
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# A block of the kind sh needs what a machine of tests lacks.
_LACKING: Final = ("claude mcp", "docker compose", "kubectl", "systemctl")
# Pages whose programs know nothing of the product, and what they tell to install besides the client.
_ALONE: Final = ("docs/agents.md", "examples/worker_python/README.md")
_LIBRARIES: Final = ("fastmcp==3.4.11", "langchain-mcp-adapters==0.3.2", "langgraph==1.2.24", "openai-agents==0.24.0")
_OF_LIBRARIES: Final = ("docs/agents.md", "docs/hosts.md", "docs/mcp-workers.md")


def blocks(page: str) -> list[tuple[str, str]]:
    """Each block of a page: its kind and its text."""
    return [(kind, dedent(text)) for _, kind, text in _BLOCK.findall((ROOT / page).read_text())]


# Makes the agent of all pages, and the functions that they use.
AGENT: Final = next(text for kind, text in blocks("README.md") if kind == "bash")


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_run_or_read(page: str) -> None:
    for kind, text in blocks(page):
        if kind == "json":
            json.loads(text)
        elif kind == "yaml":
            assert yaml.safe_load(text)
        elif kind == "sh":
            assert any(program in text for program in _LACKING), text
        else:
            # tests/handoff compares what a transcript prints; text is an answer or a form that a page shows.
            assert kind in {"bash", "python", "sql", "transcript", "markdown", "ini", "text"}, text


@pytest.mark.skipif(
    "gatehouse@/" not in os.environ.get("DATABASE_URL", ""), reason="a named server has its own superuser"
)
def test_the_roles_of_the_pages_can_be_made() -> None:
    (made,) = (text for kind, text in blocks("docs/deploy.md") if kind == "sql")
    script = re.sub(r"--.*|\bgatehouse(?=\b|_)", lambda found: "told" if found[0] == "gatehouse" else "", made)
    assert made.count("create role") == len(LOGINS) + 1
    with psycopg.connect(os.environ["DATABASE_URL"], user="postgres", autocommit=True) as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement)


def _done(*command: str | Path, folder: Path = ROOT, **environment: str) -> Ended:
    done = run(*command, env=of_a_person(**environment), cwd=folder, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(params=["our libraries", pytest.param("its own libraries", marks=pytest.mark.long)])
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The command of the wheel, in an environment that finds its libraries in ours, or got them as a person's does."""
    place, pip = tmp_path / "a new place", (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path, ".")
    _done(*pip, *wheel)
    venv.create(place)
    into, (built,) = (*pip, "--python", place / "bin" / "python", "install"), tmp_path.glob("gatehouse-*.whl")
    if request.param == "its own libraries":
        _done(*into, f"{built}[demo]")
    else:
        _done(*into, "--no-deps", "--no-index", built)
        own = next(place.glob("lib/*/site-packages"))
        (own / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return place / "bin" / "gatehouse"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A Python that has the client's wheel and what the pages tell to install, and nothing else."""
    venv.create(tmp_path / "alone", with_pip=True, symlinks=True)
    python = tmp_path / "alone" / "bin" / "python"
    _done(python, "-m", "pip", "wheel", "--no-deps", "-q", "--wheel-dir", tmp_path, ROOT / "clients" / "python")
    _done(python, "-m", "pip", "install", "-q", *tmp_path.glob("gatehouse_client-*.whl"))
    _done(python, "-m", "pip", "check")
    (package,) = tmp_path.glob("alone/lib/*/site-packages/gatehouse_client")
    assert (package / "py.typed").exists()
    return python


def _script(page: str, folder: Path, alone: Path, manage: str) -> str:
    """The blocks of a page for a shell of its own, which ends what it has left running."""
    python = shlex.quote(str(alone) if page in _ALONE else sys.executable)
    lines = [f"echo '== {page}'", "trap 'for job in $(jobs -p); do kill $job; wait $job || true; done' EXIT"]
    for number, (kind, text) in enumerate(blocks(page)):
        if kind == "bash" and text != AGENT:
            typed = r'(?:"\$PRODUCT"/)?\.venv/bin/python( manage\.py)?'
            lines.append(re.sub(typed, lambda found: manage if found[1] else python, text))
        elif kind == "python":
            file = folder / f"{Path(page).stem}-{number}.py"
            file.write_text(text)
            serves = " & until command curl -so /dev/null $SERVER; do sleep 0.2; done" if "mcp.run(" in text else ""
            lines.append(f"{shlex.quote(str(alone))} {shlex.quote(str(file))}{serves}")
    return "\n".join(["(", *lines, ")"])


def _said(pages: list[str], url: str, folder: Path, alone: Path, data: Path, *manage: str | Path) -> str:
    """Follow pages one after the other; what was printed."""
    typed = shlex.join(map(str, manage))
    with socket.create_server(("127.0.0.1", 0)) as free:
        server = f"http://127.0.0.1:{free.getsockname()[1]}"
    (wheel,) = folder.glob("gatehouse_client-*.whl")
    here = {
        "http://127.0.0.1:8080": url,
        "http://127.0.0.1:8765": server,
        "port=8765": f"port={server.rpartition(':')[2]}",
        "./clients/python": str(wheel),
        "/backups": str(folder),
        "wait=50": "wait=1",
        "api -N": "api -N -m 2",
        "https://hooks.slack.com/services/…": server,
        "YOUR.HOST": "example.org",
    }
    # A refusal ends the script; a stream that was read for long enough does not.
    curl = 'curl() { command curl --fail-with-body "$@" || test $? = 28; }'
    agent = AGENT.replace(".venv/bin/python manage.py", typed)
    script = "\n".join([curl, f"SERVER={server}/mcp", agent, *(_script(page, folder, alone, typed) for page in pages)])
    for written, meant in here.items():
        script = script.replace(written, meant)
        for file in folder.glob("*.py"):
            file.write_text(file.read_text().replace(written, meant))
    made = folder / "shell"
    made.mkdir()
    done = _done("bash", "-euo", "pipefail", "-c", script, GATEHOUSE_DATA=str(data), TMPDIR=str(made))
    return done.stdout.replace('": ', '":')


@pytest.mark.ci
def test_the_wheel_runs_outside_the_working_copy_and_the_pages_work_as_they_are_written(
    installed: Path, alone: Path, tmp_path: Path
) -> None:
    data = tmp_path / "Größe und Länge"

    def call(*arguments: str) -> Ended:
        return _done(installed, *arguments, "--data", data.name, folder=data.parent)

    with up(data, command=(installed, "up")) as child:
        stack = json.loads((data / "stack.json").read_text())
        own = str(installed.parent.parent)
        assert all(own in psutil.Process(stack["processes"][name]).cwd() for name in ("web", "worker-core"))

        pages = [page for page in PAGES if page not in _OF_LIBRARIES]
        said = _said(pages, stack["url"], tmp_path, alone, data, installed, "manage")

        for words in (
            "quota on provider:openai: 40 receipts",
            "Greeted Ada",
            '"content":{"said":"Hello Ada"}',
            "\ncancel\n",
            "It is 17 degrees and sunny in Vienna.",
            '"worker_id":"reading-time"',
            '"effective_tier":"untrusted"',
            '"summary":"7 words, 0.04 minutes"',
            "effective tier verified",
            '"status":"unregistered"',
            "event: inbox",
        ):
            assert words in said, words
        assert re.search(r"\d+ lines in \d+ files of .*docs\n(?: .*\n)* +\d+ \.md$", said, re.MULTILINE)
        assert (tmp_path / "monday" / "manifest.json").exists()
        assert "ok   " in call("doctor").stdout
        call("down")
        assert child.wait(timeout=PATIENCE) == 0
    call("reset", "--yes")


@pytest.mark.long
def test_the_pages_on_libraries_of_others_work_as_they_are_written(alone: Path, tmp_path: Path) -> None:
    _done(alone, "-m", "pip", "install", "-q", *_LIBRARIES)
    data = tmp_path / "data"
    with up(data, "--no-workers"):
        url = json.loads((data / "stack.json").read_text())["url"]
        said = _said(list(_OF_LIBRARIES), url, tmp_path, alone, data, sys.executable, "manage.py")
    _done(ROOT / "bin" / "up", "reset", "--yes", "--data", str(data))

    assert '"access_token":"ght_' in said
    assert said.count("'read_inbox'") == 2
    assert "sunny in Vienna" in said
    assert said.count("Counted: {") == 2
