"""pdf-indexer: reads the text of PDFs with pypdf and builds an index of it.

Indexing takes long, so a call starts a job: `index_pdfs` returns its id, `get_job_status` and `get_job_result` follow it.
The same unchanged files are the same job. PDFs come from anywhere, so each one is read in a process beside this one, which
is limited in memory and time.

Run it: `python examples/workers/pdf_indexer.py --port 8804 --root /srv/documents`
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import anyio
import anyio.to_process
import anyio.to_thread
from mcp import MCPError
from mcp.types import INTERNAL_ERROR
from pydantic import BaseModel, Field
from worker_kit import JobId, JobStatus, Started, Worker, refused

MAX_FILES: Final = 2_000
MAX_FILE_BYTES: Final = 64 * 1_048_576
MAX_TEXT: Final = 4_000_000
MAX_INDEXED_WORDS: Final = 5_000
MAX_SECONDS_A_FILE: Final = 60.0
MAX_MEMORY: Final = 2 * 1_073_741_824
MAX_JOBS: Final = 50
BYTES_A_SECOND: Final = 500_000
WORD: Final = re.compile(r"[^\W\d_]{3,}")

log = logging.getLogger("worker")

worker = Worker(
    worker_id="pdf-indexer",
    description="Indexes PDF documents: their text, pages, titles and words.",
    capabilities=["pdf", "pdfs", "indexing", "index", "documents", "text_extraction"],
    constraints={"max_payload_bytes": 1_048_576, "timeout_seconds": 60, "rate_limit_per_hour": 36_000},
    hints={"latency_band": "slow", "cost_band": "low", "expected_runtime": "long"},
    side_effects={"filesystem": "read", "network": "none", "execution": "none"},
    capacity=4,
)


class Indexed(BaseModel):
    path: str
    title: str
    pages: int
    words: int
    text: str = Field(description="The text of all pages, a form feed between two.")


class Skipped(BaseModel):
    path: str
    reason: str


class PdfIndex(BaseModel):
    """The text of PDFs and where each word stands in it."""

    job_id: str
    summary: str
    documents: list[Indexed]
    skipped: list[Skipped] = Field(description="Files that are no readable PDF, each with its reason.")
    words: dict[str, list[str]] = Field(
        description="The commonest words, each with its places as `document:page`, both counted from 1."
    )
    complete: bool = Field(description="False when a limit cut documents or their text.")


Files = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4_096)]],
    Field(min_length=1, max_length=MAX_FILES, description="Absolute paths of PDF files."),
]


@dataclass
class Job:
    """One list of files being indexed, in this process's memory: after a restart it is started again."""

    files: list[str]
    status: Literal["running", "complete", "failed"] = "running"
    done: int = 0
    message: str = "waiting for its turn"
    documents: list[Indexed] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    complete: bool = True
    task: asyncio.Task[None] | None = None


JOBS: Final[dict[str, Job]] = {}
ONE_AT_A_TIME: Final = asyncio.Lock()


@worker.tool(title="Index PDFs")
async def index_pdfs(files: Files) -> Started:
    """Index PDF documents for search: starts a job that reads the text, titles and pages of PDF files and indexes their words.

    `files` are absolute paths. Answers the job's id at once; get_job_status and get_job_result follow it.
    """
    seen = [(name, status.st_size, status.st_mtime_ns) for name in files for status in [worker.path(name).stat()]]
    job_id = f"job-{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:24]}"
    if job_id not in JOBS or JOBS[job_id].status == "failed":
        if sum(job.status == "running" for job in JOBS.values()) >= MAX_JOBS:
            raise MCPError(INTERNAL_ERROR, "too many jobs wait already; try again later")
        while len(JOBS) >= 2 * MAX_JOBS:
            del JOBS[next(one for one, job in JOBS.items() if job.status != "running")]
        job = JOBS[job_id] = Job(files=list(files))
        job.task = asyncio.create_task(run(job))
    seconds = round(2 + sum(size for _, size, _ in seen) / BYTES_A_SECOND)
    return Started(job_id=job_id, estimated_duration_seconds=seconds)


@worker.tool(title="Status of a job")
async def get_job_status(job_id: JobId) -> JobStatus:
    """Tell how far a job is that was started here, by its job_id."""
    job = known(job_id)
    percent = 100.0 if job.status == "complete" else round(100 * job.done / len(job.files), 1)
    return JobStatus(job_id=job_id, status=job.status, progress=percent, message=job.message)


@worker.tool(title="Result of a job")
async def get_job_result(job_id: JobId) -> PdfIndex:
    """Return what a complete job has found, by its job_id."""
    job = known(job_id)
    if job.status != "complete":
        raise refused("job_failed" if job.status == "failed" else "not_complete", job.message)
    counts: Counter[str] = Counter()
    places: defaultdict[str, list[str]] = defaultdict(list)
    for number, document in enumerate(job.documents, start=1):
        for page, text in enumerate(document.text.split("\f"), start=1):
            found = Counter(WORD.findall(text.casefold()))
            counts.update(found)
            for word in found:
                places[word].append(f"{number}:{page}")
    commonest = sorted(counts, key=lambda word: (-counts[word], word))[:MAX_INDEXED_WORDS]
    return PdfIndex(
        job_id=job_id,
        summary=job.message,
        documents=job.documents,
        skipped=job.skipped,
        words={word: places[word][:50] for word in commonest},
        complete=job.complete,
    )


def known(job_id: str) -> Job:
    if job_id not in JOBS:
        raise refused("unknown_job", f"no job {job_id!r} is known here: it was never started, or is forgotten")
    return JOBS[job_id]


async def run(job: Job) -> None:
    """Index the job's files, one after the other; whatever breaks ends in the job's status."""
    with worker.working():
        async with ONE_AT_A_TIME:
            try:
                for name in job.files:
                    job.message = f"reading {name}"
                    await add(job, name)
                    job.done += 1
            except Exception as broken:
                log.exception("a job broke")
                job.status, job.message = "failed", f"{type(broken).__name__}: {broken}"[:1_000]
                return
    if job.documents:
        pages, words = (sum(getattr(one, name) for one in job.documents) for name in ("pages", "words"))
        job.status, job.message = "complete", f"Indexed {len(job.documents)} PDFs: {pages} pages, {words} words"
    else:
        first = job.skipped[0]
        job.status, job.message = "failed", f"none of the files is a readable PDF; {first.path}: {first.reason}"


async def add(job: Job, name: str) -> None:
    """Add one file to the job, or the reason why it is left out."""
    room = MAX_TEXT - sum(len(document.text) for document in job.documents)
    path = worker.path(name)
    read: tuple[str, list[str], bool] | str
    try:
        if room <= 0 or path.stat().st_size > MAX_FILE_BYTES:
            job.complete = job.complete and room > 0
            read = "too_large: over the limit of a file or of the index"
        else:
            content = await anyio.to_thread.run_sync(path.read_bytes)
            with anyio.fail_after(MAX_SECONDS_A_FILE):
                read = await anyio.to_process.run_sync(text_of, content, room, cancellable=True)
    except (TimeoutError, OSError, anyio.BrokenWorkerProcess) as broken:
        read = f"not_a_pdf: {type(broken).__name__} {broken}"
    if isinstance(read, str):
        job.skipped.append(Skipped(path=name, reason=clean(read)))
        return
    title, pages, cut = read
    job.complete = job.complete and not cut
    text = "\f".join(pages)
    words = len(re.findall(r"[^\W\d_]+", text))
    job.documents.append(Indexed(path=name, title=title, pages=len(pages), words=words, text=text))


def text_of(content: bytes, room: int) -> tuple[str, list[str], bool] | str:
    """Return a PDF's title, the text of its pages, and whether a limit cut it; else why it can't be read.

    Runs in a process of its own, in which this module has another name: no class of this module can be returned.
    """
    import resource  # noqa: PLC0415 - POSIX alone has it, and only this process wants it

    from pypdf import PdfReader  # noqa: PLC0415 - the worker itself never parses a PDF

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, hard))
    logging.getLogger("pypdf").setLevel("CRITICAL")
    pages: list[str] = []
    try:
        reader = PdfReader(io.BytesIO(content))
        title = clean(str(reader.metadata.title or "") if reader.metadata else "")[:500]
        for page in reader.pages:
            if room <= 0:
                return title, pages, True
            text = clean(page.extract_text())
            pages.append(text[:room])
            room -= len(text)
    except Exception as broken:  # noqa: BLE001 - a foreign file breaks a parser in every way there is
        return f"not_a_pdf: {type(broken).__name__}: {broken}"[:300]
    return title, pages, room < 0


def clean(text: str) -> str:
    """Return text that can be sent and stored: no halves of characters, no control characters."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(letter for letter in whole if letter.isprintable() or letter in "\n\t")


if __name__ == "__main__":
    sys.exit(worker.main())
