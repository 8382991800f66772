"""code-analyzer: measures a Python tree: complexity by radon, dead code by vulture.

It reads the files under the given path and nothing else. It does not import the analyzed code.

Run it: `python examples/workers/code_analyzer.py --port 8801`
"""

from __future__ import annotations

import ast
import os
import sys
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

MAX_FILES: Final = 5_000
MAX_FILE_BYTES: Final = 1_048_576
MAX_SECONDS: Final = 240.0
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
DEAD_CODE_CONFIDENCE: Final = 80  # below it, vulture mostly guesses about frameworks that call by name
COMPLEX, VERY_COMPLEX, LONG_FUNCTION = 10, 20, 60
# CPython's parser counts its depth for all threads together.
ONE_AT_A_TIME: Final = anyio.CapacityLimiter(1)

Severity = Literal["high", "medium", "low"]

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
    kind: str
    severity: Severity
    message: str


class Hotspot(BaseModel):
    path: str
    function: str
    line: int
    complexity: int
    lines: int


class Module(BaseModel):
    path: str
    lines: int


class CodeAnalysis(BaseModel):
    """The measures of one Python tree. Paths are relative to `repo_path`."""

    repo_path: str
    language: str = "python"
    summary: str
    files: int
    lines: int
    functions: int
    complexity_score: float = Field(description="Mean cyclomatic complexity of all functions.")
    issues: list[Issue] = Field(description="Findings, worst first; issues_total counts those cut off as well.")
    issues_total: int
    hotspots: list[Hotspot] = Field(description="The most complex functions.")
    modules: list[Module] = Field(description="The modules, longest first.")
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
    tree = Tree(worker.folder(repo_path))
    paths = await anyio.to_thread.run_sync(tree.find_files)
    if not paths:
        raise refused("nothing_to_do", f"{repo_path} holds no Python files")
    began = anyio.current_time()
    for done, path in enumerate(paths, start=1):
        if anyio.current_time() - began > MAX_SECONDS:
            tree.complete = False
            break
        await anyio.to_thread.run_sync(tree.measure, path, limiter=ONE_AT_A_TIME)
        if done % 50 == 0 or done == len(paths):
            await ctx.report_progress(done, len(paths), f"{done} of {len(paths)} files analyzed")
    return await anyio.to_thread.run_sync(tree.result)


class Tree:
    """A Python tree under analysis; measures add up file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.complete = True
        self.issues: list[Issue] = []
        self.hotspots: list[Hotspot] = []
        self.modules: list[Module] = []
        self.vulture = Vulture()

    def find_files(self) -> list[Path]:
        """Return the regular `.py` files in a stable order, without environments and caches."""
        found: list[Path] = []
        for folder, subfolders, names in os.walk(self.root, followlinks=False):
            if "pyvenv.cfg" in names and Path(folder) != self.root:
                subfolders.clear()
                continue
            subfolders[:] = sorted({name for name in subfolders if not name.startswith(".")} - SKIPPED_FOLDERS)
            files = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
            found += [file for file in files if file.is_file() and not file.is_symlink()]
            if len(found) > MAX_FILES:
                self.complete = False
                break
        return found[:MAX_FILES]

    def measure(self, path: Path) -> None:
        """Add one file's measures. A file that can't be read or parsed becomes an issue."""
        name = path.relative_to(self.root).as_posix().encode("utf-8", "replace").decode()
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"over the limit of {MAX_FILE_BYTES} bytes")  # noqa: TRY301 - an issue like the others
            source = path.read_text(encoding="utf-8")
            blocks = ComplexityVisitor.from_ast(ast.parse(source)).blocks
            self.vulture.scan(source, filename=name)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as refusal:
            self._report(name, getattr(refusal, "lineno", None) or 1, "unreadable", "high", f"Not analyzed: {refusal}")
            self.modules.append(Module(path=name, lines=1))
            return
        self.modules.append(Module(path=name, lines=source.count("\n") + 1))
        for block in (block for block in blocks if block.letter != "C"):
            line, complexity, lines = block.lineno, block.complexity, block.endline - block.lineno + 1
            self.hotspots.append(
                Hotspot(path=name, function=block.fullname, line=line, complexity=complexity, lines=lines)
            )
            if complexity > COMPLEX:
                message = f"{block.fullname} has a cyclomatic complexity of {complexity}"
                severity: Severity = "high" if complexity > VERY_COMPLEX else "medium"
                self._report(name, line, "complex_function", severity, message)
            if lines > LONG_FUNCTION:
                self._report(name, line, "long_function", "medium", f"{block.fullname} has {lines} lines of code")

    def result(self) -> CodeAnalysis:
        """Return what was measured, worst first."""
        for item in self.vulture.get_unused_code(min_confidence=DEAD_CODE_CONFIDENCE):
            message = f"{item.message} ({item.confidence} % sure)"
            self._report(Path(item.filename).as_posix(), item.first_lineno, "dead_code", "low", message)
        rank = {"high": 0, "medium": 1, "low": 2}
        self.issues.sort(key=lambda issue: (rank[issue.severity], issue.path, issue.line, issue.kind))
        self.hotspots.sort(key=lambda spot: (-spot.complexity, -spot.lines, spot.path, spot.line))
        lines = sum(module.lines for module in self.modules)
        complexity = sum(spot.complexity for spot in self.hotspots) / (len(self.hotspots) or 1)
        return CodeAnalysis(
            repo_path=str(self.root),
            summary=(
                f"{len(self.modules)} Python files, {lines} lines, {len(self.hotspots)} functions:"
                f" mean complexity {complexity:.1f}, {len(self.issues)} issues"
            ),
            files=len(self.modules),
            lines=lines,
            functions=len(self.hotspots),
            complexity_score=round(complexity, 2),
            issues=self.issues[:300],
            issues_total=len(self.issues),
            hotspots=self.hotspots[:20],
            modules=sorted(self.modules, key=lambda one: (-one.lines, one.path))[:50],
            complete=self.complete,
        )

    def _report(self, path: str, line: int, kind: str, severity: Severity, message: str) -> None:
        self.issues.append(Issue(path=path, line=line, kind=kind, severity=severity, message=message[:500]))


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)  # about the analyzed code, not about this one
    sys.exit(worker.main())
