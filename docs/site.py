"""What the site needs beside the pages: README.md is its beginning, and files outside of docs/ are named, not linked."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_README = Path(__file__).parent.parent / "README.md"
_HERE = re.compile(r"\]\((?!https?:|#)(docs/)?")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """README.md, with its links as they are from docs/."""
    text = _HERE.sub(lambda found: "](" if found[1] else "](../", _README.read_text())
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/ lead to the beginning, or become the path of the file."""
    depth = page.file.src_uri.count("/")

    def told(found: re.Match[str]) -> str:
        words, up, path = found.groups()
        if up.count("../") <= depth:
            return found[0]
        if path.startswith("README.md"):
            return f"[{words}]({'../' * depth}index.md{path.removeprefix('README.md')})"
        return words if path in words else f"{words} (`{path}`)"

    return _OUTSIDE.sub(told, markdown)
