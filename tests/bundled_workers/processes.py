"""Real worker processes, a real MCP client, and real PDFs, written by another library than the one that reads them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import CallToolResult

WORKERS = Path(__file__).resolve().parents[2] / "examples" / "workers"
DEADLINE = 30.0
SCRIPTS = [
    "code_analyzer.py",
    "concept_extractor.py",
    "file_scanner.py",
    "optimization_suggester.py",
    "pdf_indexer.py",
    "sentiment_analyzer.py",
]


@dataclass(frozen=True, slots=True)
class RunningWorker:
    endpoint: str
    process: subprocess.Popen[str]


@contextmanager
def running(script: str, *arguments: str, **environment: str) -> Iterator[RunningWorker]:
    """Start a worker on a free port, wait until it is ready, and stop it at the end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEHOUSE_")}
    process = subprocess.Popen(
        [sys.executable, str(WORKERS / script), "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=inherited | environment,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), f"{script} did not start: {line!r}, exit code {process.poll()}"
        yield RunningWorker(endpoint=line.split()[2], process=process)
    finally:
        process.terminate()
        process.wait(DEADLINE)
        process.stdout.close()


def call(endpoint: str, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    async def answer() -> CallToolResult:
        async with Client(endpoint, read_timeout_seconds=DEADLINE) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(answer())


def result_of(endpoint: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    answer = call(endpoint, tool, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    structured: dict[str, Any] = answer.structured_content
    return structured


def refusal_of(endpoint: str, tool: str, arguments: dict[str, Any]) -> str:
    answer = call(endpoint, tool, arguments)
    assert answer.is_error, answer.structured_content
    return "".join(getattr(block, "text", "") for block in answer.content)


def write_pdf(path: Path, pages: Sequence[Sequence[str]], *, title: str = "") -> Path:
    """Write a PDF with these lines on its pages."""
    # Its import takes half a second in each process that collects tests.
    from fpdf import FPDF  # noqa: PLC0415

    pdf = FPDF()
    pdf.set_title(title)
    pdf.set_font("Helvetica", size=10)
    for lines in pages:
        pdf.add_page()
        for line in lines:
            pdf.cell(text=line, new_x="LMARGIN", new_y="NEXT")
    pdf.output(str(path))
    return path


GRADIENTS = [
    [
        "Gradient descent optimizes neural networks.",
        "Neural networks learn representations by gradient descent.",
        "The learning rate of gradient descent decides how far each step goes.",
    ],
    ["Stochastic gradient descent looks at small batches.", "Neural networks with many layers need many batches."],
]
RECEIPTS = [["A receipt says that something happened.", "Receipts are immutable, and an inbox holds receipts."]]
