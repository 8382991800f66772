"""code-analyzer: measures a Python tree: complexity by radon, dead code by vulture.

It reads the files under the given path and nothing else. It does not import the analyzed code.

Run it: `python examples/workers/code_analyzer.py --port 8801`
"""

from __future__ import annotations

import ast
import os
import warnings
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field
from radon.visitors import ComplexityVisitor
from vulture import Vulture
from worker_kit import Worker, refused

MAX_FILES, MAX_FILE_BYTES, MAX_SECONDS = 5_000, 1_048_576, 240.0
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
DEAD_CODE_CONFIDENCE: Final = 80  # below it, vulture mostly guesses about frameworks that call by name
COMPLEX, VERY_COMPLEX, LONG_FUNCTION = 10, 20, 60
SEVERITIES: Final = ("high", "medium", "low")
# CPython's parser counts its depth for all threads together.
ONE_AT_A_TIME: Final = anyio.CapacityLimiter(1)

worker = Worker(
    worker_id="code-analyzer",
    description="Analyzes Python codebases: complexity, long functions and dead code.",
    capabilities=["code_analysis", "python", "codebase", "repository", "static_analysis", "complexity"],
    constraints={"max_payload_bytes": 65_536, "timeout_seconds": 300, "rate_limit_per_hour": 3_600},
    hints={"latency_band": "medium", "cost_band": "low", "expected_runtime": "long"},
    side_effects={"filesystem": "read", "network": "none", "execution": "none"},
    capacity=2,
)


class Issue(BaseModel):
    path: str
    line: int
    kind: Literal["complex_function", "long_function", "dead_code", "unreadable"]
    severity: Literal["high", "medium", "low"]
    message: str


class Hotspot(BaseModel):
    path: str
    function: str
    line: int
    complexity: int


class CodeAnalysis(BaseModel):
    """The measures of one Python tree. Paths are relative to `repo_path`."""

    repo_path: str
    summary: str
    files: int
    functions: int
    complexity_score: float = Field(description="Mean cyclomatic complexity of all functions.")
    issues: list[Issue] = Field(description="Findings, worst first; issues_total counts those cut off as well.")
    issues_total: int
    hotspots: list[Hotspot] = Field(description="The most complex functions.")
    complete: bool = Field(description="False when a limit ended the analysis before the whole tree was read.")


@worker.tool(title="Analyze a Python repository")
async def analyze_repository(repo_path: str, ctx: Context[Any, Any], language: str = "python") -> CodeAnalysis:
    """Analyze a Python codebase or repository at a path on the worker's machine.

    Measures cyclomatic complexity, and finds code quality issues, hotspots that are hard to maintain, and dead code.
    The analysis is what optimization suggestions build on. `repo_path` is the absolute path of a folder;
    `language` is python.
    """
    if language.strip().lower() not in {"python", "python3", "py"}:
        raise refused("unknown_language", f"language {language!r} is not supported: this worker analyzes python")
    root = worker.path(repo_path, is_folder=True)
    paths = await anyio.to_thread.run_sync(python_files, root)
    if not paths:
        raise refused("nothing_to_do", f"{repo_path} holds no Python files")
    issues: list[Issue] = []
    hotspots: list[Hotspot] = []
    vulture, began, done = Vulture(), anyio.current_time(), 0
    for path in paths[:MAX_FILES]:
        if anyio.current_time() - began > MAX_SECONDS:
            break
        name = path.relative_to(root).as_posix().encode("utf-8", "replace").decode()
        await anyio.to_thread.run_sync(measure, path, name, vulture, issues, hotspots, limiter=ONE_AT_A_TIME)
        done += 1
        if done % 20 == 0:
            await ctx.report_progress(done, len(paths), f"{done} of {len(paths)} files analyzed")
    for item in await anyio.to_thread.run_sync(vulture.get_unused_code, DEAD_CODE_CONFIDENCE):
        name, line, message = Path(item.filename).as_posix(), item.first_lineno, item.message
        issues.append(Issue(path=name, line=line, kind="dead_code", severity="low", message=message))
    issues.sort(key=lambda issue: (SEVERITIES.index(issue.severity), issue.path, issue.line, issue.kind))
    hotspots.sort(key=lambda spot: (-spot.complexity, spot.path, spot.line))
    mean = round(sum(spot.complexity for spot in hotspots) / (len(hotspots) or 1), 2)
    return CodeAnalysis(
        repo_path=str(root),
        summary=f"Python files: {done}, functions: {len(hotspots)}, mean complexity: {mean}, issues: {len(issues)}",
        files=done,
        functions=len(hotspots),
        complexity_score=mean,
        issues=issues[:300],
        issues_total=len(issues),
        hotspots=hotspots[:20],
        complete=done == len(paths),
    )


def python_files(root: Path) -> list[Path]:
    """Return the regular `.py` files in a stable order, without environments, caches and hidden folders."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        kept = {name for name in subfolders if not name.startswith(".")} - SKIPPED_FOLDERS
        subfolders[:] = sorted(name for name in kept if not Path(folder, name, "pyvenv.cfg").exists())
        files = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
        found += [file for file in files if file.is_file() and not file.is_symlink()]
    return found


def measure(path: Path, name: str, vulture: Vulture, issues: list[Issue], hotspots: list[Hotspot]) -> None:
    """Add one file's measures. A file that can't be read or parsed becomes an issue."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"over the limit of {MAX_FILE_BYTES} bytes")  # noqa: TRY301 - an issue like the others
        source = path.read_text(encoding="utf-8")
        blocks = ComplexityVisitor.from_ast(ast.parse(source)).blocks
        vulture.scan(source, filename=name)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as refusal:
        message = f"Not analyzed: {refusal}"[:500]
        issues.append(Issue(path=name, line=1, kind="unreadable", severity="high", message=message))
        return
    for block in (block for block in blocks if block.letter != "C"):
        about, complexity = {"path": name, "line": block.lineno}, block.complexity
        hotspots.append(Hotspot(function=block.fullname, complexity=complexity, **about))
        if complexity > COMPLEX:
            message = f"{block.fullname} has a cyclomatic complexity of {complexity}"
            severity = "high" if complexity > VERY_COMPLEX else "medium"
            issues.append(Issue(kind="complex_function", severity=severity, message=message, **about))
        if (lines := block.endline - block.lineno + 1) > LONG_FUNCTION:
            message = f"{block.fullname} has {lines} lines of code"
            issues.append(Issue(kind="long_function", severity="medium", message=message, **about))


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)  # about the analyzed code, not about this one
    worker.main()
