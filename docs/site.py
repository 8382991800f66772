"""What the site needs beside the pages: pages that stand elsewhere, and files outside of docs/ named instead of linked."""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parent.parent
_ELSEWHERE = {
    "README.md": "index.md",
    "clients/python/README.md": "python.md",
    "clients/typescript/README.md": "typescript.md",
}
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """The pages that stand elsewhere, with their links as they are from docs/."""
    for path, name in _ELSEWHERE.items():
        folder = os.path.dirname(path)  # noqa: PTH120  # a path within the repository

        def there(found: re.Match[str], folder: str = folder) -> str:
            return f"]({os.path.relpath(os.path.join(folder, found[1]), 'docs')})"  # noqa: PTH118  # as above

        files.append(File.generated(config, name, content=_LINK.sub(there, (_ROOT / path).read_text())))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/ lead to the page of that file, or become its path."""
    depth = page.file.src_uri.count("/")

    def told(found: re.Match[str]) -> str:
        words, up, path = found.groups()
        if up.count("../") <= depth:
            return found[0]
        file, _, place = path.partition("#")
        if file in _ELSEWHERE:
            return f"[{words}]({'../' * depth}{_ELSEWHERE[file]}{'#' * bool(place)}{place})"
        return words if path in words else f"{words} (`{path}`)"

    return _OUTSIDE.sub(told, markdown)
