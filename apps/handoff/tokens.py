"""What reading costs: tokens of a model's context, estimated without a model.

The middle of what models make of prose and code, because costs are compared here, and a count that errs on one side would
flatter the comparison. Budgets are kept by a cautious count (see apps.memory.texts).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from apps.handoff.errors import Refused

_BYTES_PER_TOKEN: Final = 4

# Where sessions that search read about earlier ones.
SESSION_FILES: Final = ("shared/sessions/*.md", "sessions/*.md", ".sessions/*.md", "docs/sessions/*.md")
SEARCHED: Final = 5


def estimate(text: str) -> int:
    """About how many tokens a text takes: a token for each four bytes, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def last_sessions(top: Path, patterns: Sequence[str] = SESSION_FILES) -> list[Path]:
    """The five newest files of a repository that tell of sessions, which a session without handoff would read.

    :raises Refused: if a pattern is none.
    """
    found = {path for pattern in patterns for path in _matching(top, pattern)}
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)[:SEARCHED]


def _matching(top: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in top.glob(pattern) if path.is_file()]
    except (NotImplementedError, ValueError) as exc:
        raise Refused(f"{pattern!r} names no files within the repository: {exc}.") from None


def cost_of(files: Sequence[Path]) -> int:
    """What reading these files takes."""
    return sum(estimate(path.read_text(encoding="utf-8", errors="replace")) for path in files)
