from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import INTERNAL_ERROR, CallToolResult

from tests.bundled_workers.processes import WORKERS, call, refusal_of, result_of, running

BRANCHY = (
    "def branchy(x):\n" + "".join(f"    if x == {n}:\n        return {n}\n" for n in range(24)) + "    return None\n"
)
TWIN = """
def {name}(rows):
    '''{name}'''
    total = 0
    for row in rows:
        if row > 3:
            total += row
        else:
            total -= row
    return total
"""


@pytest.fixture(scope="module")
def analyzer() -> Iterator[str]:
    with running("code_analyzer.py") as worker:
        yield worker.endpoint


def tree(folder: Path, **files: str) -> str:
    for name, source in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_real_tree_is_measured_in_both_protocol_generations(analyzer: str, mode: str) -> None:
    analysis = result_of(analyzer, "analyze_repository", {"repo_path": str(WORKERS)}, mode=mode)

    assert analysis["repo_path"] == str(WORKERS)
    assert analysis["language"] == "python"
    assert analysis["files"] == len(list(WORKERS.glob("*.py")))
    assert analysis["lines"] == sum(len(path.read_text().splitlines()) for path in WORKERS.glob("*.py"))
    assert analysis["functions"] > 50
    assert 1 <= analysis["complexity_score"] < 5
    assert 10 < analysis["maintainability_index"] <= 100
    assert {"path", "function", "line", "complexity"} <= analysis["hotspots"][0].keys()
    assert analysis["complete"] is True


def test_findings_name_file_line_kind_and_severity(analyzer: str, tmp_path: Path) -> None:
    path = tree(
        tmp_path,
        branchy=BRANCHY,
        pkg__dead="import os\n\n\ndef used():\n    return 1\n    print(2)\n\n\nused()\n",
        pkg__slow="def f(a):\n    for x in a:\n        for y in a:\n            for z in a:\n                a.pop(0)\n",
        one=TWIN.format(name="first"),
        two=TWIN.format(name="second"),
    )
    analysis = result_of(analyzer, "analyze_repository", {"repo_path": path})

    found = {(issue["path"], issue["line"], issue["kind"], issue["severity"]) for issue in analysis["issues"]}
    assert ("branchy.py", 1, "complex_function", "high") in found
    assert ("pkg/dead.py", 1, "dead_code", "low") in found
    assert ("pkg/dead.py", 6, "dead_code", "low") in found
    assert ("pkg/slow.py", 4, "nested_loops", "medium") in found
    assert ("pkg/slow.py", 5, "list_front_in_loop", "medium") in found
    assert ("one.py", 2, "duplicate_code", "medium") in found
    assert analysis["hotspots"][0] == {
        "path": "branchy.py",
        "function": "branchy",
        "line": 1,
        "complexity": 25,
        "lines": 50,
    }
    assert [place["path"] for place in analysis["duplicates"][0]["places"]] == ["one.py", "two.py"]


def test_a_function_on_one_line_ends_there(analyzer: str, tmp_path: Path) -> None:
    path = tree(
        tmp_path,
        short="def one(a): return a\n" + "if one(1):\n    one(2)\n" * 30 + "def two(\n    a,\n): return a or 1\n",
    )

    hotspots = result_of(analyzer, "analyze_repository", {"repo_path": path})["hotspots"]

    assert [(spot["function"], spot["complexity"], spot["lines"]) for spot in hotspots] == [
        ("two", 2, 3),
        ("one", 1, 1),
    ]


def test_a_large_literal_does_not_hold_up_the_analysis(analyzer: str, tmp_path: Path) -> None:
    path = tree(tmp_path, table="TABLE = {\n" + "".join(f"    'key{n}': {n},\n" for n in range(20_000)) + "}\n")

    assert result_of(analyzer, "analyze_repository", {"repo_path": path})["lines"] == 20_002


def test_the_same_tree_gives_the_same_analysis(analyzer: str) -> None:
    first = result_of(analyzer, "analyze_repository", {"repo_path": str(WORKERS)})

    assert result_of(analyzer, "analyze_repository", {"repo_path": str(WORKERS)}) == first


def test_files_that_cannot_be_parsed_become_issues(analyzer: str, tmp_path: Path) -> None:
    path = tree(tmp_path, good="x = 1\n", broken="def f(:\n", nested="(" * 5_000, empty="")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "codec.py").write_bytes(b"# coding: no-such-codec\n")
    (tmp_path / "huge.py").write_bytes(b"x = 1\n" * 400_000)

    analysis = result_of(analyzer, "analyze_repository", {"repo_path": path})

    kinds = {issue["path"]: issue["kind"] for issue in analysis["issues"]}
    assert analysis["files"] == 8
    assert kinds == {
        "broken.py": "syntax_error",
        "nested.py": "syntax_error",
        "nul.py": "syntax_error",
        "latin.py": "unreadable",
        "codec.py": "unreadable",
        "huge.py": "too_large",
    }


def test_environments_caches_histories_links_and_pipes_are_left_alone(analyzer: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    tree(outside, theirs="def theirs(): ...\n")
    root = tmp_path / "root"
    path = tree(
        root,
        mine="x = 1\n",
        env__lib__theirs="x = 1\n",
        node_modules__theirs="x = 1\n",
    )
    (root / "env" / "pyvenv.cfg").touch()
    for hidden in (".git", ".venv", "__pycache__"):
        (root / hidden).mkdir()
        (root / hidden / "theirs.py").write_text("x = 1\n")
    (root / "link.py").symlink_to(outside / "theirs.py")
    (root / "linked").symlink_to(outside)
    os.mkfifo(root / "pipe.py")

    assert result_of(analyzer, "analyze_repository", {"repo_path": path})["files"] == 1


def test_the_analyzed_code_is_never_run(analyzer: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tree(tmp_path, trap=f"open({str(marker)!r}, 'w').close()\n", setup=f"open({str(marker)!r}, 'w').close()\n")

    result_of(analyzer, "analyze_repository", {"repo_path": path})

    assert not marker.exists()


def test_progress_goes_up_to_the_number_of_files(analyzer: str) -> None:
    reports: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total))

    async def watched() -> None:
        async with Client(analyzer) as client:
            await client.call_tool("analyze_repository", {"repo_path": str(WORKERS)}, progress_callback=note)

    asyncio.run(watched())

    files = len(list(WORKERS.glob("*.py")))
    assert reports[0] == (0, files)
    assert reports[-1] == (files, files)
    assert reports == sorted(reports)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/no/such/folder", "does not exist"),
        (__file__, "is not a folder"),
        ("relative/folder", "must be an absolute path"),
        ("", "must be an absolute path"),
        ("/nul\0byte", "cannot be read"),
        ("/" + "long" * 2_000, "cannot be read"),
    ],
)
def test_a_path_that_is_no_folder_is_refused_with_its_reason(analyzer: str, path: str, reason: str) -> None:
    assert reason in refusal_of(analyzer, "analyze_repository", {"repo_path": path})


def test_a_tree_without_python_is_refused(analyzer: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no code here")

    assert "holds no Python files" in refusal_of(analyzer, "analyze_repository", {"repo_path": str(tmp_path)})


def test_another_language_is_refused(analyzer: str) -> None:
    arguments = {"repo_path": str(WORKERS), "language": "cobol"}

    assert "'cobol' is not supported" in refusal_of(analyzer, "analyze_repository", arguments)


@pytest.mark.parametrize("arguments", [{}, {"repo_path": 7}, {"repo_path": ["a"]}, {"repo_path": None}])
def test_wrong_arguments_are_a_tool_error(analyzer: str, arguments: dict[str, object]) -> None:
    assert call(analyzer, "analyze_repository", arguments).is_error


def test_two_analyses_at_once_both_end_well(analyzer: str) -> None:
    async def two() -> list[CallToolResult]:
        async with Client(analyzer) as one, Client(analyzer) as other:
            arguments = {"repo_path": str(WORKERS.parents[1] / "apps")}
            return await asyncio.gather(
                *(client.call_tool("analyze_repository", arguments) for client in (one, other, one, other))
            )

    for answer in asyncio.run(two()):
        assert not answer.is_error, answer.content


def test_a_tool_that_breaks_says_what_broke_it() -> None:
    """In a process of its own: the kit is a script's neighbour, not a package."""
    script = (
        "import asyncio\n"
        "from mcp import Client, MCPError\n"
        "from worker_kit import Worker\n"
        "none = {'filesystem': 'none', 'network': 'none', 'execution': 'none'}\n"
        "worker = Worker(worker_id='w', description='d', capabilities=[], constraints={}, hints={}, side_effects=none)\n"
        "@worker.tool()\n"
        "async def confuse(number: int) -> int:\n"
        "    raise SystemError('the parser is confused')\n"
        "async def main():\n"
        "    async with Client(worker.server) as client:\n"
        "        try:\n"
        "            await client.call_tool('confuse', {'number': 1})\n"
        "        except MCPError as exc:\n"
        "            print(exc.error.code, exc.error.message)\n"
        "asyncio.run(main())\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], cwd=WORKERS, capture_output=True, text=True, check=False)

    assert ran.stdout == f"{INTERNAL_ERROR} SystemError: the parser is confused\n", ran.stderr
