"""Where the handoffs of a repository are: read from git's own files, without running git."""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apps.handoff.errors import Refused, Unreadable
from apps.handoff.items import Item

_HOME: Final = "handoff"
_IN_TREE: Final = "in-tree"
_FOLDERS: Final = ("inbox", "outbox", "shared-inbox")
_DONE: Final = frozenset({"processed", "taken"})
_EMPTY: Final = frozenset({".gitignore", ".gitkeep"})
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
    """What other repositories know it by: a readable name, and a digest of where it is fetched from."""

    @property
    def in_tree(self) -> bool:
        """Whether the folders stand in the main worktree, as somebody asked for. Git's own folder knows it, which no
        clone brings along."""
        return (self.common / _HOME / _IN_TREE).is_file()

    @property
    def home(self) -> Path:
        """Holds `inbox`, `outbox` and `shared-inbox`."""
        return self.top if self.in_tree else self.common / _HOME

    @property
    def mark_of_in_tree(self) -> Path:
        return self.common / _HOME / _IN_TREE


def find(root: Path) -> Repository:
    """The repository that a folder belongs to.

    :raises Refused: if it belongs to none.
    """
    try:
        start = root.resolve(strict=True)
    except OSError as exc:
        raise Refused(f"{root}: {exc.strerror or exc}.") from None
    for folder in (start, *start.parents):
        if (git := _git_folder(folder)) is not None:
            common = _common(git)
            top = common.parent if common.name == ".git" else folder
            return Repository(top=top, common=common, id=_id(common, top))
    raise Refused(f"{start} is in no git repository.")


def settle(repository: Repository, *, in_tree: bool) -> Path:
    """Have the folders in the main worktree, or in git's own folder, and move there what there is; answers where.

    :raises Refused: if something else stands there.
    """
    if in_tree and repository.common.name != ".git":
        raise Refused("This repository has no main worktree to put folders into.")
    within = repository.common / _HOME
    if in_tree:
        for name in () if repository.in_tree else _FOLDERS:
            if not _may_be_used(repository.top / name):
                raise Refused(f"{repository.top / name} holds something else.")
        within.mkdir(exist_ok=True)
        # From here on writers write there; those that had begun look again afterwards.
        repository.mark_of_in_tree.touch()
        _move_folders(within, repository.top)
    elif repository.in_tree:
        _move_folders(repository.top, within)
        repository.mark_of_in_tree.unlink()
        # What came meanwhile.
        _move_folders(repository.top, within)
    return repository.home


def _move_folders(here: Path, there: Path) -> None:
    for name in _FOLDERS:
        if (here / name).is_dir():
            _merge(here / name, there / name)
        if (there / name).is_dir():
            with suppress(FileExistsError), (there / name / ".gitignore").open("x") as ignoring:
                ignoring.write("*\n")


def _merge(here: Path, there: Path) -> None:
    """All but what a commit may hold to have the folder at all; nothing that is there is overwritten."""
    there.mkdir(parents=True, exist_ok=True)
    for path in here.iterdir():
        target = there / path.name
        if path.is_dir() and not path.is_symlink():
            _merge(path, target)
        elif path.name in {".gitignore", ".lock"} and target.exists():
            path.unlink()
        elif path.name == ".ledger.jsonl" and target.exists():
            target.write_bytes(target.read_bytes() + path.read_bytes())
            path.unlink()
        elif path.name != ".gitkeep":
            path.rename(target if not target.exists() else there / f"{os.urandom(6).hex()}-{path.name}")
    with suppress(OSError):
        here.rmdir()


def _may_be_used(folder: Path) -> bool:
    """Whether a folder is not there, or holds only what a folder of handoffs does."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return False
    return all(_is_ours(path, folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _is_ours(path: Path, folder: Path) -> bool:
    if path.name in _EMPTY or path.relative_to(folder).parts[0] in _DONE:
        return True
    if path.is_symlink() or path.suffix != ".md":
        return False
    return folder.name == "outbox" or _is_item(path)


def _is_item(path: Path) -> bool:
    try:
        Item.from_bytes(path.read_bytes())
    except (Unreadable, OSError):
        return False
    return True


def _git_folder(folder: Path) -> Path | None:
    link = folder / ".git"
    if link.is_dir() and (link / "HEAD").is_file():
        return link.resolve()
    if link.is_file():
        said = link.read_text(encoding="utf-8", errors="surrogateescape").strip()
        if said.startswith("gitdir:"):
            target = (folder / said.removeprefix("gitdir:").strip()).resolve()
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
    """The same for all ways to one repository: without scheme, user, password and `.git`."""
    found = _URL.fullmatch(url) or _SCP.fullmatch(url)
    place = f"{found['host'].lower()}/{found['path'].strip('/')}" if found else url.rstrip("/")
    return place.removesuffix("/.git").removesuffix(".git").lstrip("/")
