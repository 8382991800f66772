"""The command ``gatehouse`` of the installed product; in a working copy ``bin/up`` calls it.

In the wheel this file is the package ``gatehouse``, and the product's packages lie in its folder.
"""

import argparse
import os
import sys
from pathlib import Path

_PRODUCT = Path(__file__).resolve().parent
_RUNS = ("up", "status", "down", "reset", "restore", "demo")
_MANAGES = {"token": ["issue_token"], "doctor": ["doctor"], "backup": ["backup"], "manage": []}
_HELP = """\
up           start everything and stay in the foreground until Ctrl-C
demo [PATH]  run the main job once on a Python code base and show it
status       say what runs
down         end what runs
token        issue a token
doctor       examine every part and say how to mend it
handoff      leave notes for the next session in a repository, and read them
backup DIR   write a backup while it runs
restore DIR  make a new data folder from a backup
reset        erase the data folder
manage       all other commands: gatehouse manage help

gatehouse COMMAND --help tells more."""


def main() -> None:
    folder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    folder.add_argument("--data", metavar="DIR", help="the data folder (default: ~/.local/share/gatehouse)")
    given, words = folder.parse_known_args()
    parser = argparse.ArgumentParser(
        prog="gatehouse", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[folder]
    )
    parser.add_argument("command", metavar="COMMAND", choices=[*_RUNS, *_MANAGES, "handoff"])
    # What follows the command is for the command to read.
    command, rest = parser.parse_args(words[:1]).command, words[1:]
    data = given.data or os.environ.get("GATEHOUSE_DATA") or _user_folder()
    os.environ["GATEHOUSE_DATA"] = str(Path(data).expanduser().resolve())
    if command in _MANAGES:
        sys.argv = ["gatehouse manage", *_MANAGES[command], *rest]
        sys.path.insert(0, str(_PRODUCT))
        from manage import main as manage  # noqa: PLC0415  # now it is found

        manage()
        return
    if command == "handoff":
        os.environ["PYTHONPATH"] = str(_PRODUCT)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "apps.handoff.cli", *rest])  # noqa: S606  # the same interpreter
    # Processes find the product in the folder where they run.
    os.environ["GATEHOUSE_CALLER_DIR"] = str(Path.cwd())
    os.chdir(_PRODUCT)
    os.execv(sys.executable, [sys.executable, "-m", "config.stack", command, *rest])  # noqa: S606  # the same interpreter


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "gatehouse"


if __name__ == "__main__":
    main()
