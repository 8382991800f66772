from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfWriter

from tests.bundled_workers.pdfs import GRADIENTS, RECEIPTS, write_pdf
from tests.bundled_workers.processes import WORKERS, eventually, refusal_of, result_of, running


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ground = tmp_path_factory.mktemp("ground")
    (ground / "inside").mkdir()
    write_pdf(ground / "inside" / "gradients.pdf", GRADIENTS, title="On gradients")
    write_pdf(ground / "inside" / "receipts.pdf", RECEIPTS)
    write_pdf(ground / "theirs.pdf", RECEIPTS)
    (ground / "inside" / "link.pdf").symlink_to(ground / "theirs.pdf")
    (ground / "inside" / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing of the kind")
    locked = PdfWriter(clone_from=ground / "theirs.pdf")
    locked.encrypt("secret", algorithm="RC4-128")
    locked.write(ground / "inside" / "locked.pdf")
    (ground / "inside" / "large.pdf").touch()
    os.truncate(ground / "inside" / "large.pdf", 64 * 1_048_576 + 1)
    return ground / "inside"


@pytest.fixture(scope="module")
def indexer(ground: Path) -> Iterator[str]:
    with running("pdf_indexer.py", "--root", str(ground)) as worker:
        yield worker.endpoint


def started(indexer: str, *files: Path) -> dict[str, Any]:
    return result_of(indexer, "index_pdfs", {"files": [str(file) for file in files]})


def ended(indexer: str, job_id: str) -> dict[str, Any]:
    """The job's status when it is over."""
    seen: dict[str, Any] = {}

    def over() -> bool:
        seen.update(result_of(indexer, "get_job_status", {"job_id": job_id}))
        return seen["status"] in {"complete", "failed"}

    eventually(over, "the end of the job")
    return seen


def test_a_job_ends_with_the_text_the_titles_and_the_places_of_words(indexer: str, ground: Path) -> None:
    job = started(indexer, ground / "gradients.pdf", ground / "receipts.pdf")
    status = ended(indexer, job["job_id"])
    index = result_of(indexer, "get_job_result", {"job_id": job["job_id"]})

    assert job.keys() == {"job_id", "estimated_duration_seconds"}
    assert (status["status"], status["progress"]) == ("complete", 100.0)
    assert index["summary"] == status["message"] == "Indexed 2 PDFs: 3 pages, 53 words"
    assert [(one["title"], one["pages"]) for one in index["documents"]] == [("On gradients", 2), ("", 1)]
    assert index["documents"][0]["text"].split("\f")[1].startswith("Stochastic gradient descent")
    assert index["words"]["gradient"] == ["1:1", "1:2"]
    assert index["words"]["receipts"] == ["2:1"]
    assert index["complete"] is True


def test_the_same_files_are_the_same_job_until_one_changes(indexer: str, ground: Path, tmp_path: Path) -> None:
    own = write_pdf(ground / "own.pdf", RECEIPTS)
    first = started(indexer, own)
    again = started(indexer, own)
    write_pdf(own, GRADIENTS)
    changed = started(indexer, own)

    assert first == again
    assert changed["job_id"] != first["job_id"]


def test_what_is_no_readable_pdf_is_left_out_with_its_reason(indexer: str, ground: Path) -> None:
    job = started(indexer, *(ground / f"{name}.pdf" for name in ("broken", "locked", "large", "receipts")))
    ended(indexer, job["job_id"])
    index = result_of(indexer, "get_job_result", {"job_id": job["job_id"]})

    assert [Path(one["path"]).name for one in index["documents"]] == ["receipts.pdf"]
    reasons = {Path(one["path"]).stem: one["reason"].partition(":")[0] for one in index["skipped"]}
    assert reasons == {"broken": "not_a_pdf", "locked": "not_a_pdf", "large": "too_large"}


def test_a_job_without_any_readable_pdf_fails_and_says_why(indexer: str, ground: Path) -> None:
    job = started(indexer, ground / "broken.pdf")

    status = ended(indexer, job["job_id"])

    assert status["status"] == "failed"
    assert "none of the files is a readable PDF" in status["message"]
    assert ": job_failed: " in refusal_of(indexer, "get_job_result", {"job_id": job["job_id"]})


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("{ground}/link.pdf", "outside_root"),
        ("{ground}/../theirs.pdf", "outside_root"),
        ("{ground}/nothing.pdf", "not_found"),
        ("gradients.pdf", "not_absolute"),
    ],
)
def test_a_file_that_may_not_be_read_is_refused_before_a_job_begins(
    indexer: str, ground: Path, path: str, code: str
) -> None:
    files = [str(ground / "gradients.pdf"), path.format(ground=ground)]

    assert f": {code}: " in refusal_of(indexer, "index_pdfs", {"files": files})


@pytest.mark.parametrize("tool", ["get_job_status", "get_job_result"])
def test_a_job_that_was_never_started_is_unknown(indexer: str, tool: str) -> None:
    assert ": unknown_job: " in refusal_of(indexer, tool, {"job_id": "job-0"})


@pytest.mark.parametrize("files", [[], "a.pdf", [7], None])
def test_wrong_arguments_are_a_tool_error(indexer: str, files: object) -> None:
    assert refusal_of(indexer, "index_pdfs", {"files": files})


def test_a_file_is_read_within_two_gigabytes() -> None:
    script = "import resource, pdf_indexer as p; p.text_of(b'', 1); print(resource.getrlimit(resource.RLIMIT_AS)[0])"

    done = subprocess.run([sys.executable, "-c", script], cwd=WORKERS, capture_output=True, text=True, check=True)

    assert int(done.stdout) == 2 * 1024**3
