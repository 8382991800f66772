"""Sentences are short: at most 20 words on average in a file, and 35 in any one.

Counted are the prose of Markdown files and the docstrings and refusals of Python files. Code, tables and headings are
not; an item of a list is a sentence. `python -m tests.test_language [FILE…]` prints what is over a limit.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
AVERAGE, LONGEST = 20.0, 35
_PROSE: Final = ("*.md", "apps/*.py", "config/*.py", "clients/*.py", "examples/*.py")
_LEFT_OUT: Final = re.compile(r"/migrations/|^tests/|^docs/reports/")


def files() -> list[Path]:
    """The tracked files whose prose counts."""
    listed = subprocess.run(["git", "ls-files", "--", *_PROSE], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if not _LEFT_OUT.search(name)]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def sentences(path: Path) -> list[list[str]]:
    """The sentences of a file, each as its words."""
    text = path.read_text(encoding="utf-8")
    blocks = _of_markdown(text) if path.suffix == ".md" else _of_python(text)
    return [words for block in blocks for one in _split(block) if len(words := _words(one)) > 1]


def _of_markdown(text: str) -> Iterator[str]:
    text = re.sub(r"^( *)```.*?^\1```", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\s*[|#].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    yield from re.split(r"\n\s*\n", text)


def _of_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if doc := ast.get_docstring(node):
                doc = re.sub(r"\n(?:\n+    .*)+(?=\n\n|$)", "\n\n", doc)
                doc = re.sub(r"^\s*(?::\w+[^:]*:|[-*]|\d+\.) ", "\n\n", doc, flags=re.MULTILINE)
                yield from re.split(r"\n\s*\n", doc)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for given in node.exc.args[:1]:
                if isinstance(given, ast.Constant | ast.JoinedStr):
                    yield re.sub(r"{[^{}]*}", "x", ast.unparse(given))


def _split(block: str) -> list[str]:
    block = re.sub(r"`[^`]*`", "x", block)
    block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    return re.split(r"(?<=[.!?])[\"')*_]*\s+", " ".join(block.split()))


def _words(sentence: str) -> list[str]:
    return re.findall(r"[\w'/.-]*\w[\w'/.-]*", sentence)


def faults(path: Path) -> list[str]:
    """What is over a limit in a file."""
    found = sentences(path)
    average = sum(map(len, found)) / max(len(found), 1)
    name = path.relative_to(ROOT)
    over = [f"{name}: {average:.1f} words a sentence"] if average > AVERAGE else []
    return over + [f"{name}: {len(one)} words: {' '.join(one)}" for one in found if len(one) > LONGEST]


def test_sentences_are_short() -> None:
    assert [fault for path in files() for fault in faults(path)] == []


if __name__ == "__main__":
    over = [fault for path in [Path(name).resolve() for name in sys.argv[1:]] or files() for fault in faults(path)]
    print(*over, sep="\n")
    sys.exit(bool(over))
