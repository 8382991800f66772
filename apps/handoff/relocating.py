"""Moving the folders of a repository between git's own folder and the main worktree, while others use them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from apps.handoff import folders
from apps.handoff.errors import Refused, Unreadable
from apps.handoff.items import Item
from apps.handoff.places import Repository

_FOLDERS: Final = ("inbox", "outbox", "shared-inbox")
_DONE: Final = frozenset({"processed", "taken"})
_EMPTY: Final = frozenset({".gitignore", ".gitkeep"})


def settle(repository: Repository, *, in_tree: bool) -> Path:
    """Have the folders in the main worktree, or in git's own folder, and move there what there is; answers where.

    :raises Refused: if something else stands there.
    """
    if in_tree and repository.common.name != ".git":
        raise Refused("This repository has no main worktree to put folders into.")
    within = repository.within_git
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
            folders.make(there / name)


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
    if path.is_symlink():
        return False
    if path.name in _EMPTY or path.relative_to(folder).parts[0] in _DONE:
        return True
    if path.suffix != ".md":
        return False
    return folder.name == "outbox" or _is_item(path)


def _is_item(path: Path) -> bool:
    try:
        Item.from_bytes(path.read_bytes())
    except (Unreadable, OSError):
        return False
    return True
