"""pdf-indexer: reads the text of PDFs with pypdf and builds an index of it.

Indexing takes long, so a call starts a job: `index_pdfs` returns its id, `get_job_status` and `get_job_result` follow it.
The same unchanged files are the same job. PDFs come from anywhere, so each one is read in a process beside this one, which
is limited in memory and time.

Run it: `python examples/workers/pdf_indexer.py --port 8804 --root /srv/documents`
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import Annotated, Final

import anyio
import anyio.to_process
from pydantic import BaseModel, Field
from worker_kit import JobId, JobStatus, Started, Worker, refused

MAX_FILES, MAX_TEXT, MAX_JOBS = 2_000, 4_000_000, 50
BYTES_A_SECOND: Final = 500_000
MAX_SECONDS_A_FILE: Final = 60.0
MAX_MEMORY: Final = 2 * 1_073_741_824

worker = Worker(
    worker_id="pdf-indexer",
    description="Indexes PDF documents: their text, pages and titles.",
    capabilities=["pdf", "pdfs", "indexing", "index", "documents", "text_extraction"],
    constraints={"max_payload_bytes": 1_048_576, "timeout_seconds": 60, "rate_limit_per_hour": 36_000},
    hints={"latency_band": "slow", "cost_band": "low", "expected_runtime": "long"},
    side_effects={"filesystem": "read", "network": "none", "execution": "none"},
)


class Indexed(BaseModel):
    path: str
    title: str
    pages: int
    text: str = Field(description="The text of all pages, a form feed between two.")


class Skipped(BaseModel):
    path: str
    reason: str


class PdfIndex(BaseModel):
    """The titles and the text of PDFs, page by page."""

    job_id: str
    summary: str
    documents: list[Indexed]
    skipped: list[Skipped] = Field(description="Files that are no readable PDF, each with its reason.")
    complete: bool = Field(description="False when a limit cut documents or their text.")


Files = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4_096)]],
    Field(min_length=1, max_length=MAX_FILES, description="Absolute paths of PDF files."),
]


@dataclass
class Job:
    """One list of files being indexed, in this process's memory: after a restart it is started again."""

    files: list[str]
    documents: list[Indexed] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    room: int = MAX_TEXT
    task: asyncio.Task[None] | None = None

    def status(self, job_id: str) -> JobStatus:
        done = len(self.documents) + len(self.skipped)
        pages = sum(one.pages for one in self.documents)
        return JobStatus(
            job_id=job_id,
            status="running" if done < len(self.files) else "complete" if self.documents else "failed",
            progress=100 * done / len(self.files),
            message=f"Indexed {len(self.documents)} PDFs: {pages} pages, skipped {len(self.skipped)}",
        )


JOBS: Final[dict[str, Job]] = {}
ONE_AT_A_TIME: Final = asyncio.Lock()


@worker.tool(title="Index PDFs")
async def index_pdfs(files: Files) -> Started:
    """Index PDF documents for search: starts a job that reads the text, titles and pages of PDF files.

    `files` are absolute paths. Answers the job's id at once; get_job_status and get_job_result follow it.
    """
    seen = [(name, status.st_size, status.st_mtime_ns) for name in files for status in [worker.path(name).stat()]]
    job_id = f"job-{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:24]}"
    if job_id not in JOBS or JOBS[job_id].status(job_id).status == "failed":
        for over in [one for one, job in JOBS.items() if job.task is None or job.task.done()][: 1 - MAX_JOBS]:
            del JOBS[over]
        job = JOBS[job_id] = Job(files=files)
        job.task = asyncio.create_task(run(job))
    return Started(job_id=job_id, estimated_duration_seconds=2 + sum(size for _, size, _ in seen) // BYTES_A_SECOND)


@worker.tool(title="Status of a job")
async def get_job_status(job_id: JobId) -> JobStatus:
    """Tell how far a job is that was started here, by its job_id."""
    return known(job_id).status(job_id)


@worker.tool(title="Result of a job")
async def get_job_result(job_id: JobId) -> PdfIndex:
    """Return what a complete job has found, by its job_id."""
    job = known(job_id)
    status = job.status(job_id)
    if status.status != "complete":
        raise refused("not_complete", status.message)
    return PdfIndex(
        job_id=job_id, summary=status.message, documents=job.documents, skipped=job.skipped, complete=job.room > 0
    )


def known(job_id: str) -> Job:
    if job_id not in JOBS:
        raise refused("unknown_job", f"no job {job_id!r} is known here: it was never started, or is forgotten")
    return JOBS[job_id]


async def run(job: Job) -> None:
    """Index the job's files, one after the other; a file that can't be read is skipped with the reason."""
    async with ONE_AT_A_TIME:
        for name in job.files:
            try:
                with anyio.fail_after(MAX_SECONDS_A_FILE):
                    path = str(worker.path(name))
                    title, pages = await anyio.to_process.run_sync(text_of, path, job.room, cancellable=True)
            except Exception as broken:  # noqa: BLE001 - a foreign file breaks a parser in every way there is
                job.skipped.append(Skipped(path=name, reason=clean(f"{type(broken).__name__}: {broken}"[:300])))
            else:
                job.documents.append(Indexed(path=name, title=title, pages=len(pages), text="\f".join(pages)))
                job.room -= sum(map(len, pages))


def text_of(path: str, room: int) -> tuple[str, list[str]]:
    """Return a PDF's title and the text of its pages, cut at `room` characters. Runs in a process of its own."""
    import resource  # noqa: PLC0415 - POSIX alone has it, and only this process wants it

    from pypdf import PdfReader  # noqa: PLC0415 - the worker itself never parses a PDF

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, hard))
    logging.getLogger("pypdf").setLevel("CRITICAL")
    reader = PdfReader(path)
    pages: list[str] = []
    for page in reader.pages if room > 0 else ():
        pages.append(clean(page.extract_text())[:room])
        room -= len(pages[-1])
    return clean(str(reader.metadata.title or "") if reader.metadata else "")[:500], pages


def clean(text: str) -> str:
    """Return text that can be sent and stored: no halves of characters, no control characters."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(letter for letter in whole if letter.isprintable() or letter in "\n\t")


if __name__ == "__main__":
    worker.main()
