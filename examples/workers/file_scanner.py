"""file-scanner: lists the files of a folder, by type.

It reads names and sizes, never a file's content. Links and names that begin with a dot are left out.

Run it: `python examples/workers/file_scanner.py --port 8803 --root /srv/documents`
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Final

import anyio.to_thread
from pydantic import BaseModel, Field
from worker_kit import Worker

MAX_LISTED: Final = 5_000
MAX_VISITED: Final = 500_000

worker = Worker(
    worker_id="file-scanner",
    description="Lists the files in a directory, by type, with their sizes.",
    capabilities=["files", "file_system", "directory", "folder", "scanning", "listing"],
    constraints={"max_payload_bytes": 65_536, "timeout_seconds": 30, "rate_limit_per_hour": 36_000},
    hints={"latency_band": "fast", "cost_band": "free", "expected_runtime": "fast"},
    side_effects={"filesystem": "read", "network": "none", "execution": "none"},
    capacity=8,
)

FileTypes = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=40)]],
    Field(max_length=50, description="Extensions such as pdf or .txt; none means every file."),
]


class Scan(BaseModel):
    """The files of one folder."""

    path: str
    summary: str
    files: list[str] = Field(description="Absolute paths, in order; files_found counts those cut off as well.")
    files_found: int
    total_bytes: int
    complete: bool = Field(description="False when a limit ended the scan or cut the list.")


@worker.tool(title="Scan a directory")
async def scan_directory(path: str, file_types: FileTypes = [], recursive: bool = True) -> Scan:  # noqa: B006, FBT001, FBT002 - the schema's defaults
    """List the files in a directory or folder, optionally only those of some types.

    `path` is the absolute path of the folder, `file_types` are extensions such as pdf; with `recursive`
    its folders are scanned as well.
    """
    return await anyio.to_thread.run_sync(scan, worker.path(path, is_folder=True), file_types, recursive)


def scan(root: Path, file_types: list[str], recursive: bool) -> Scan:  # noqa: FBT001 - as the tool's
    wanted = tuple("." + kind.lower().lstrip("*").lstrip(".") for kind in file_types)
    found: list[str] = []
    count = size = visited = 0
    for folder, subfolders, names in os.walk(root, followlinks=False):
        subfolders[:] = sorted(name for name in subfolders if recursive and not name.startswith("."))
        visited += len(names)
        if visited > MAX_VISITED:
            break
        for name in sorted(names):
            file = Path(folder, name)
            status = file.lstat()
            if name.startswith(".") or not stat.S_ISREG(status.st_mode) or not str(file).isprintable():
                continue
            if not wanted or name.lower().endswith(wanted):
                count, size = count + 1, size + status.st_size
                found += [str(file)] if count <= MAX_LISTED else []
    kinds = ", ".join(kind[1:].upper() for kind in wanted)
    noun = "file" if count == 1 else "files"
    return Scan(
        path=str(root),
        summary=f"{count} {kinds + ' ' if kinds else ''}{noun} in {root}, {size} bytes",
        files=found,
        files_found=count,
        total_bytes=size,
        complete=visited <= MAX_VISITED and count <= MAX_LISTED,
    )


if __name__ == "__main__":
    worker.main()
