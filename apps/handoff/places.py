"""The folders of a repository's handoffs, found by git's own files, without running git."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apps.handoff.items import Refused

_HOME: Final = "handoff"
_IN_TREE: Final = "in-tree"
_SECTION: Final = re.compile(r'\s*\[\s*(?P<name>[^\s"\]]+)\s*(?:"(?P<sub>.*)")?\s*\]')
_SCP: Final = re.compile(r"(?:[^@/]+@)?(?P<host>[^:/]+):(?P<path>.+)")
_URL: Final = re.compile(r"[A-Za-z0-9+.-]+://(?:[^/@]*@)?(?P<host>[^/:]*)(?::\d*)?(?P<path>/.*)")
_NOT_IN_SLUGS: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A git repository: all its worktrees share `common`; `top` is the main worktree, where there is one."""

    top: Path
    common: Path
    id: str
    """Its name for other repositories: a readable name, and a digest of its origin."""

    @property
    def home(self) -> Path:
        """Holds `inbox`, `outbox` and `shared-inbox`: git's own folder, or the main worktree on request."""
        return self.top if self.mark_of_in_tree.is_file() else self.common / _HOME

    @property
    def mark_of_in_tree(self) -> Path:
        """Says that the folders are in the main worktree. It is in git's own folder, so no clone has it."""
        return self.common / _HOME / _IN_TREE

    def place(self, *, in_tree: bool) -> Path:
        """Choose where the folders are; returns their new home. Nothing is moved.

        :raises Refused: if something waits in the old folders, or the new ones hold other files.
        """
        if in_tree and self.common.name != ".git":
            raise Refused("This repository has no main worktree to put folders into.")
        new = self.top if in_tree else self.common / _HOME
        if new == self.home:
            return new
        boxes = ("inbox", "outbox", "shared-inbox")
        done = {"processed", "taken", "rejected"}
        waiting = [path for box in boxes for path in (self.home / box).rglob("*.md") if done.isdisjoint(path.parts)]
        if waiting:
            raise Refused(f"{self.home} holds items and reports that wait: inherit and take them first.")
        for path in (path for box in boxes for path in [new / box, *(new / box).rglob("*")]):
            if path.is_symlink() or (path.is_file() and path.suffix != ".md" and not path.name.startswith(".")):
                raise Refused(f"{path} is no file of handoffs.")
        self.mark_of_in_tree.parent.mkdir(exist_ok=True)
        self.mark_of_in_tree.touch() if in_tree else self.mark_of_in_tree.unlink()
        return new


def find(root: Path) -> Repository:
    """The repository that a folder belongs to.

    :raises Refused: if it belongs to none, or to one that can't be read.
    """
    try:
        return _find(root.resolve(strict=True))
    except OSError as exc:
        raise Refused(f"{exc.filename or root}: {exc.strerror or exc}.") from None
    except (RuntimeError, ValueError) as exc:
        # Links that lead to themselves, and paths in git's files that are none.
        raise Refused(f"{root}: {exc}.") from None


def _find(start: Path) -> Repository:
    for folder in (start, *start.parents):
        if (git := _git_folder(folder)) is not None:
            common = _common(git)
            top = common.parent if common.name == ".git" else folder
            return Repository(top=top, common=common, id=_id(common, top))
    raise Refused(f"{start} is in no git repository.")


def _git_folder(folder: Path) -> Path | None:
    link = folder / ".git"
    if link.is_dir() and (link / "HEAD").is_file():
        return link.resolve()
    if link.is_file():
        text = link.read_text(encoding="utf-8", errors="surrogateescape").strip()
        if text.startswith("gitdir:"):
            target = (folder / text.removeprefix("gitdir:").strip()).resolve()
            return target if target.is_dir() else None
    bare = all((folder / part).exists() for part in ("HEAD", "objects", "refs"))
    return folder if bare else None


def _common(git: Path) -> Path:
    link = git / "commondir"
    if not link.is_file():
        return git
    return (git / link.read_text(encoding="utf-8", errors="surrogateescape").strip()).resolve()


def _id(common: Path, top: Path) -> str:
    origin = _origin(common / "config")
    place = _canonical(origin) if origin else str(common)
    name = place.rsplit("/", 1)[-1] if origin else top.name
    slug = _NOT_IN_SLUGS.sub("-", name).strip("-.")[:40] or "repository"
    return f"{slug}-{hashlib.sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def _origin(config: Path) -> str | None:
    """The URL of the remote `origin`, as git's configuration has it."""
    try:
        lines = config.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    inside = False
    for line in lines:
        if section := _SECTION.match(line):
            inside = section["name"].lower() == "remote" and section["sub"] == "origin"
        elif inside and line.partition("=")[0].strip().lower() == "url":
            return line.partition("=")[2].strip().strip('"') or None
    return None


def _canonical(url: str) -> str:
    """The same text for all URLs of one repository: without scheme, user, password and `.git`."""
    found = _URL.fullmatch(url) or _SCP.fullmatch(url)
    place = f"{found['host'].lower()}/{found['path'].strip('/')}" if found else url.rstrip("/")
    return place.removesuffix("/.git").removesuffix(".git").lstrip("/")
