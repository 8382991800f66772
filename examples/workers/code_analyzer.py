"""code-analyzer: measures a real Python tree.

Complexity and maintainability come from radon, dead code from vulture, the rest from the syntax
tree. It reads files under the given path and nothing else: no imports of the analyzed code, no
symbolic links, no subprocess, no network.

Run it: `python examples/workers/code_analyzer.py --port 8801`
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import stat
import sys
import time
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field
from radon.metrics import h_visit_ast, mi_compute
from radon.visitors import ComplexityVisitor
from vulture import Vulture
from worker_kit import Worker, refused

MAX_FILES: Final = 5_000
MAX_FILE_BYTES: Final = 1_048_576
MAX_TOTAL_BYTES: Final = 64 * 1_048_576
MAX_FOLDERS: Final = 50_000
MAX_SECONDS: Final = 240.0
MAX_ISSUES: Final = 300
MAX_HOTSPOTS: Final = 20
MAX_MODULES: Final = 50
MAX_DUPLICATES: Final = 20
PROGRESS_SECONDS: Final = 0.25

SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
DEAD_CODE_CONFIDENCE: Final = 80  # below it, vulture mostly guesses about frameworks that call by name
DUPLICATE_LINES: Final = 5
DEEP_LOOPS: Final = 3
MANY_PARAMETERS: Final = 8
# What is worth an issue, and from where on it is a severe one.
COMPLEX, VERY_COMPLEX = 10, 20
LONG_FUNCTION, VERY_LONG_FUNCTION = 60, 150
LARGE_FILE, VERY_LARGE_FILE = 800, 2_000
LOW_MAINTAINABILITY, VERY_LOW_MAINTAINABILITY = 20, 10
# CPython's parser counts its depth for all threads together, so two at once may break each other.
ONE_AT_A_TIME: Final = anyio.CapacityLimiter(1)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Severity = Literal["high", "medium", "low"]
RANK: Final[dict[str, int]] = {"high": 0, "medium": 1, "low": 2}

worker = Worker(
    worker_id="code-analyzer",
    description="Analyzes Python codebases: complexity, maintainability, dead and duplicate code.",
    capabilities=[
        "code_analysis",
        "python",
        "codebase",
        "repository",
        "static_analysis",
        "complexity",
        "maintainability",
    ],
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
    functions: int
    complexity: float = Field(description="Mean cyclomatic complexity of the module's functions.")
    maintainability_index: float = Field(description="0 (worst) to 100; under 20 is hard to maintain.")


class Place(BaseModel):
    path: str
    line: int
    function: str


class Duplicate(BaseModel):
    lines: int
    places: list[Place]


class CodeAnalysis(BaseModel):
    """The measures of one Python tree. Paths are relative to `repo_path`."""

    repo_path: str
    language: str
    summary: str
    files: int = Field(description="Python files looked at.")
    lines: int
    functions: int
    complexity_score: float = Field(description="Mean cyclomatic complexity of all functions.")
    maintainability_index: float = Field(description="Mean of the modules by their lines, 0 (worst) to 100.")
    issues: list[Issue] = Field(description="Findings, worst first; issues_total counts those cut off as well.")
    issues_total: int
    hotspots: list[Hotspot] = Field(description="The most complex functions.")
    modules: list[Module] = Field(description="The modules hardest to maintain, worst first.")
    duplicates: list[Duplicate] = Field(description="Functions whose bodies are the same.")
    complete: bool = Field(description="False when a limit ended the analysis before the whole tree was read.")


@worker.tool(title="Analyze a Python repository")
async def analyze_repository(repo_path: str, ctx: Context[Any, Any], language: str = "python") -> CodeAnalysis:
    """Analyze a Python codebase or repository at a path on the worker's machine.

    Measures cyclomatic complexity and maintainability, and finds code quality issues, hotspots, dead
    code, slow patterns and duplicate functions. The analysis is what optimization suggestions build on.
    `repo_path` is the absolute path of a folder; `language` is python.
    """
    if language.strip().lower() not in {"python", "python3", "py"}:
        raise refused("unknown_language", f"language {language!r} is not supported: this worker analyzes python")
    root = await anyio.to_thread.run_sync(worker.root.folder, repo_path)
    tree = Tree(root)
    paths = await anyio.to_thread.run_sync(tree.find_files)
    if not paths:
        raise refused("nothing_to_do", f"{repo_path} holds no Python files")

    started = reported = time.monotonic()
    await ctx.report_progress(0, len(paths), f"{counted(len(paths), 'Python file')} found")
    for done, path in enumerate(paths, start=1):
        await anyio.to_thread.run_sync(tree.measure, path, limiter=ONE_AT_A_TIME)
        now = time.monotonic()
        if done < len(paths) and (now - started > MAX_SECONDS or tree.bytes > MAX_TOTAL_BYTES):
            tree.complete = False
            break
        if now - reported > PROGRESS_SECONDS or done == len(paths):
            reported = now
            await ctx.report_progress(done, len(paths), f"{done} of {counted(len(paths), 'file')} analyzed")
    return await anyio.to_thread.run_sync(tree.result)


class Tree:
    """A Python tree under analysis; measures add up file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.complete = True
        self.files = self.lines = self.bytes = 0
        self.issues: list[Issue] = []
        self.hotspots: list[Hotspot] = []
        self.modules: list[Module] = []
        self.bodies: defaultdict[str, list[tuple[int, Place]]] = defaultdict(list)
        self.vulture = Vulture()

    def find_files(self) -> list[Path]:
        """Return the regular `.py` files in a stable order, without environments, caches and histories."""
        found: list[Path] = []
        for visited, (folder, subfolders, names) in enumerate(os.walk(self.root, followlinks=False)):
            if visited >= MAX_FOLDERS or len(found) > MAX_FILES:
                self.complete = False
                break
            if visited and "pyvenv.cfg" in names:
                subfolders.clear()
                continue
            subfolders[:] = sorted(
                name for name in subfolders if not name.startswith(".") and name not in SKIPPED_FOLDERS
            )
            found += [path for name in sorted(names) if name.endswith(".py") and is_regular(path := Path(folder, name))]
        if len(found) > MAX_FILES:
            self.complete = False
        return found[:MAX_FILES]

    def measure(self, path: Path) -> None:
        """Add one file's measures; a file that cannot be read or parsed becomes an issue."""
        name = path.relative_to(self.root).as_posix().encode("utf-8", "replace").decode()
        self.files += 1
        try:
            source = self._read(path)
        except (OSError, SyntaxError, UnicodeDecodeError) as refusal:
            self._report(name, 1, "unreadable", "medium", f"The file cannot be read: {refusal}")
            return
        if source is None:
            self._report(name, 1, "too_large", "low", f"Not analyzed: over the limit of {MAX_FILE_BYTES} bytes a file")
            return
        lines = source.count("\n") + (not source.endswith("\n") and bool(source))
        self.lines += lines
        try:
            syntax = ast.parse(source, filename=name)
            self.vulture.scan(source, filename=name)
            self._measure_module(name, source, lines, syntax)
            for line, kind, message in slow_patterns(syntax):
                self._report(name, line, kind, "medium", message)
        except SyntaxError as refusal:
            self._report(name, refusal.lineno or 1, "syntax_error", "high", f"Not Python: {refusal.msg}")
        except (ValueError, RecursionError, MemoryError) as refusal:
            self._report(name, 1, "syntax_error", "high", f"Cannot be parsed: {str(refusal) or type(refusal).__name__}")

    def result(self) -> CodeAnalysis:
        """Return what was measured, worst first and bounded."""
        self._report_dead_code()
        duplicates = self._duplicates()
        self.issues.sort(key=lambda issue: (RANK[issue.severity], issue.path, issue.line, issue.kind))
        self.hotspots.sort(key=lambda spot: (-spot.complexity, -spot.lines, spot.path, spot.line))
        modules = sorted(self.modules, key=lambda module: (module.maintainability_index, -module.lines, module.path))
        complexity = mean([spot.complexity for spot in self.hotspots])
        weighed = sum(module.maintainability_index * module.lines for module in modules)
        index = weighed / (sum(module.lines for module in modules) or 1)
        return CodeAnalysis(
            repo_path=str(self.root),
            language="python",
            summary=(
                f"{counted(self.files, 'Python file')}, {counted(self.lines, 'line')},"
                f" {counted(len(self.hotspots), 'function')}: mean complexity {complexity:.1f},"
                f" maintainability {index:.0f} of 100, {counted(len(self.issues), 'issue')}"
                + ("" if self.complete else " (stopped at a limit before the whole tree was read)")
            ),
            files=self.files,
            lines=self.lines,
            functions=len(self.hotspots),
            complexity_score=round(complexity, 2),
            maintainability_index=round(index, 1),
            issues=self.issues[:MAX_ISSUES],
            issues_total=len(self.issues),
            hotspots=self.hotspots[:MAX_HOTSPOTS],
            modules=modules[:MAX_MODULES],
            duplicates=duplicates[:MAX_DUPLICATES],
            complete=self.complete,
        )

    def _read(self, path: Path) -> str | None:
        """Return the decoded source, or None when it is over the limit."""
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            return None
        self.bytes += len(raw)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return io.TextIOWrapper(io.BytesIO(raw), encoding=encoding).read()

    def _measure_module(self, name: str, source: str, lines: int, syntax: ast.Module) -> None:
        complexities = []
        for line, title, function in functions_of(syntax):
            complexity = ComplexityVisitor.from_ast(function).functions[0].complexity
            length = (function.end_lineno or line) - line + 1
            complexities.append(complexity)
            spot = Hotspot(path=name, function=title, line=line, complexity=complexity, lines=length)
            self.hotspots.append(spot)
            self._judge_function(spot, function.args)
            body = body_of(function)
            weight = (function.end_lineno or line) - body[0].lineno + 1 if body else 0
            if weight >= DUPLICATE_LINES:
                place = Place(path=name, line=line, function=title)
                self.bodies[fingerprint(function.args, body)].append((weight, place))
        index = round(maintainability(source, syntax), 1)
        module = Module(
            path=name,
            lines=lines,
            functions=len(complexities),
            complexity=round(mean(complexities), 2),
            maintainability_index=index,
        )
        self.modules.append(module)
        self._judge_module(module)

    def _judge_module(self, module: Module) -> None:
        if module.lines > LARGE_FILE:
            severity: Severity = "high" if module.lines > VERY_LARGE_FILE else "medium"
            self._report(module.path, 1, "oversized_file", severity, f"{module.lines} lines in one file")
        index = module.maintainability_index
        if index < LOW_MAINTAINABILITY:
            severity = "high" if index < VERY_LOW_MAINTAINABILITY else "medium"
            self._report(module.path, 1, "low_maintainability", severity, f"Maintainability index {index:.0f} of 100")

    def _judge_function(self, spot: Hotspot, arguments: ast.arguments) -> None:
        parameters = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        found: list[tuple[str, Severity, str]] = []
        if spot.complexity > COMPLEX:
            severity: Severity = "high" if spot.complexity > VERY_COMPLEX else "medium"
            found.append(("complex_function", severity, f"has a cyclomatic complexity of {spot.complexity}"))
        if spot.lines > LONG_FUNCTION:
            severity = "high" if spot.lines > VERY_LONG_FUNCTION else "medium"
            found.append(("long_function", severity, f"has {spot.lines} lines of code"))
        if parameters > MANY_PARAMETERS:
            found.append(("many_parameters", "low", f"takes {parameters} parameters"))
        for kind, severity, message in found:
            self._report(spot.path, spot.line, kind, severity, f"{spot.function} {message}")

    def _report_dead_code(self) -> None:
        for item in self.vulture.get_unused_code(min_confidence=DEAD_CODE_CONFIDENCE):
            message = f"{item.message} ({item.confidence} % sure)"
            self._report(Path(item.filename).as_posix(), item.first_lineno, "dead_code", "low", message)

    def _duplicates(self) -> list[Duplicate]:
        groups = [group for group in self.bodies.values() if len(group) > 1]
        duplicates = [Duplicate(lines=group[0][0], places=[place for _, place in group][:10]) for group in groups]
        duplicates.sort(
            key=lambda found: (-found.lines * len(found.places), found.places[0].path, found.places[0].line)
        )
        for found in duplicates:
            first, *others = found.places
            where = ", ".join(f"{place.path}:{place.line}" for place in others)
            message = f"{first.function} ({found.lines} lines) is repeated at {where}"
            self._report(first.path, first.line, "duplicate_code", "medium", message)
        return duplicates

    def _report(self, path: str, line: int, kind: str, severity: Severity, message: str) -> None:
        self.issues.append(Issue(path=path, line=line, kind=kind, severity=severity, message=message[:500]))


def is_regular(path: Path) -> bool:
    """Tell links, pipes and devices from files: opening one could lead outside the tree or block for ever."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def functions_of(node: ast.AST, prefix: str = "") -> Iterator[tuple[int, str, Function]]:
    """Yield every function below the node as (line, qualified name, function)."""
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.lineno, f"{prefix}{child.name}", child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{prefix}{child.name}."
        yield from functions_of(child, inside)


def body_of(function: Function) -> list[ast.stmt]:
    """Return a function's statements without its docstring."""
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def fingerprint(arguments: ast.arguments, body: list[ast.stmt]) -> str:
    """Return a digest of parameters and body: same digest, same code, whatever the name, comments and docstring."""
    dumped = ast.dump(arguments) + "".join(ast.dump(statement) for statement in body)
    return hashlib.sha256(dumped.encode("utf-8", "surrogatepass")).hexdigest()


def maintainability(source: str, syntax: ast.Module) -> float:
    """Return radon's maintainability index of a module.

    The line counts come from the syntax tree: radon's own counter takes seconds for a file that holds one large literal.
    """
    lines = [line.strip() for line in source.split("\n")]
    comments = sum(line.startswith("#") for line in lines)
    code = sum(1 for line in lines if line) - comments
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(syntax))
    volume = h_visit_ast(syntax).total.volume
    complexity = ComplexityVisitor.from_ast(syntax).total_complexity
    return float(mi_compute(volume, complexity, statements, 100 * comments / code if code else 0))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def slow_patterns(syntax: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, message) for code that costs more time than it must."""
    pending: list[tuple[ast.AST, int]] = [(syntax, 0)]
    while pending:
        node, loops = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            loops = 0
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            loops += 1
            if loops == DEEP_LOOPS:
                yield node.lineno, "nested_loops", "Three loops deep: the work grows with the product of their lengths"
        elif isinstance(node, ast.Call):
            yield from slow_call(node, in_loop=loops > 0)
        pending += [(child, loops) for child in ast.iter_child_nodes(node)]


def slow_call(call: ast.Call, *, in_loop: bool) -> Iterator[tuple[int, str, str]]:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="compile"), args=[ast.Constant(), *_]) if (
            in_loop
        ):
            yield call.lineno, "regex_compiled_in_loop", "A constant pattern is compiled in every round of the loop"
        case ast.Call(func=ast.Attribute(attr="insert"), args=[ast.Constant(value=0), _]) if in_loop:
            yield call.lineno, "list_front_in_loop", "insert(0, ...) in a loop moves the whole list in every round"
        case ast.Call(func=ast.Attribute(attr="pop"), args=[ast.Constant(value=0)]) if in_loop:
            yield call.lineno, "list_front_in_loop", "pop(0) in a loop moves the whole list in every round"
        case ast.Call(func=ast.Name(id="any" | "all" | "sum" | "max" | "min"), args=[ast.ListComp()]):
            yield call.lineno, "needless_list", "The list is built only to be consumed once: a generator needs no copy"
        case _:
            return


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)  # about the analyzed code, not about this one
    sys.exit(worker.main())
