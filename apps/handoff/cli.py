"""The commands of `bin/handoff` and `manage.py handoff`. Starts without Django."""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TextIO

from apps.handoff import files, sync
from apps.handoff.files import KEPT, Found, Inbox, Inheritance, Outbox, Repository
from apps.handoff.items import (
    HARVEST,
    MAX_BYTES,
    Item,
    Kind,
    Priority,
    Refused,
    Unreadable,
    estimate,
    moment_text,
    one_line,
    session_name,
    warnings,
)
from apps.handoff.sync import Synced

MAX_TOKENS: Final = 500
TITLE: Final = "◈ INHERIT\n"
NOTHING: Final = "No inheritance items\n"
_REFUSED: Final = 2
_INTERRUPTED: Final = 130
_LONGEST_DAYS: Final = 36_500
# Where sessions without handoff would read about earlier ones, and how many files.
SESSION_FILES: Final = ("shared/sessions/*.md", "sessions/*.md", ".sessions/*.md", "docs/sessions/*.md")
SEARCHED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The input of a command, its answer, and its complaints."""

    given: BinaryIO
    out: TextIO
    err: TextIO

    @classmethod
    def standard(cls) -> Self:
        """The process's own, in UTF-8. Writes are complete, also with PYTHONUNBUFFERED, where Python drops the rest of a
        partial write to a pipe.

        :raises Refused: if there is no standard output, so that nothing counts as shown.
        """
        # If the interpreter started without one of them, its number may belong to another file.
        err = _opened(2, buffering=1) if sys.stderr else io.StringIO()
        if sys.stdout is None:
            raise Refused("There is no standard output to answer on.")
        given = sys.stdin.buffer if sys.stdin else io.BytesIO()
        return cls(given=given, out=_opened(1, buffering=-1), err=err)

    def complain(self, sentence: str) -> None:
        with suppress(OSError):
            self.err.write(f"{sentence}\n")

    def say(self, *, text: str, facts: Mapping[str, Any], as_json: bool) -> None:
        """Print either form, and flush."""
        self.out.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if as_json else text)
        self.out.flush()


def _opened(descriptor: int, *, buffering: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=buffering, closefd=False)


Arguments = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Command:
    """One verb: what it does, and the arguments that it takes beside `--root` and `--json`."""

    help: str
    run: Callable[[Arguments, Repository, Streams], None]
    arguments: Sequence[tuple[str, Mapping[str, Any]]] = ()


def _inherit(given: Arguments, repository: Repository, streams: Streams) -> None:
    if given.max_tokens < 1:
        raise Refused("--max-tokens is a number from 1.")
    _session(given, default="unnamed")
    inbox = Inbox(repository)
    with ExitStack() as reading:
        if given.peek:
            found = inbox.peek(max_tokens=given.max_tokens)
        else:
            found = reading.enter_context(inbox.inherit(max_tokens=given.max_tokens, now=_now()))
        text = inherited_text(found)
        facts = {
            "items": [{**_facts(one), "body": one.item.body} for one in found.shown],
            "waiting": len(found.waiting),
            "waiting_tokens": sum(one.cost for one in found.waiting),
            "rejected": [{"name": one.name, "reason": one.reason} for one in found.rejected],
            "tokens": estimate(text),
        }
        streams.say(text=text, facts=facts, as_json=given.json)


def inherited_text(found: Inheritance) -> str:
    """What a session reads when it begins."""
    parts = [TITLE, *(one.text for one in found.shown)]
    if not found.shown and not found.waiting:
        parts.append(NOTHING)
    if found.waiting:
        cost = sum(one.cost for one in found.waiting)
        parts.append(f"{_count(len(found.waiting), 'more item')} waiting, about {cost} tokens: inherit again.\n")
    if found.rejected:
        parts.append(f"{_count(len(found.rejected), 'file')} rejected: see `handoff status`.\n")
    return "".join(parts)


def _leave(given: Arguments, repository: Repository, streams: Streams) -> None:
    now = _now()
    item = Item(
        from_session=_session(given),
        kind=Kind(given.type),
        priority=Priority(given.priority),
        created=now.replace(microsecond=0),
        body=_body(given, streams),
    )
    doubts = warnings(item.kind, item.body)
    try:
        if given.to is None:
            path = Inbox(repository).leave(item, now=now)
        else:
            path = Inbox(files.repository_of(Path(given.to))).leave(item, now=now, sender=repository)
    except Unreadable as exc:
        raise Refused(f"What you leave {exc}.") from None
    cost = estimate(item.shown(in_project=None))
    for warning in doubts:
        streams.complain(f"Warning: {warning}.")
    facts = {"name": path.name, "path": str(path), "tokens": cost, "warnings": doubts}
    streams.say(text=f"Left {path.name}, about {cost} tokens\n", facts=facts, as_json=given.json)


def _put(given: Arguments, repository: Repository, streams: Streams) -> None:
    path = Outbox(repository).put(
        report_type=given.type,
        session=_session(given),
        topic=" ".join(given.topic.split()),
        body=_body(given, streams),
        now=_now(),
    )
    streams.say(text=f"Put {path.name}\n", facts={"name": path.name, "path": str(path)}, as_json=given.json)


def _list(given: Arguments, repository: Repository, streams: Streams) -> None:
    names = [path.name for path in Outbox(repository).waiting()]
    text = "".join(f"{one_line(name)}\n" for name in names) or "The outbox is empty\n"
    streams.say(text=text, facts={"reports": names}, as_json=given.json)


def _take(given: Arguments, repository: Repository, streams: Streams) -> None:
    with Outbox(repository).take(given.name, now=_now()) as report:
        if report is None:
            streams.say(text="The outbox is empty\n", facts={"report": None}, as_json=given.json)
            return
        text = report.decode("utf-8", "replace")
        streams.say(text=text if text.endswith("\n") else f"{text}\n", facts={"report": text}, as_json=given.json)


def _status(given: Arguments, repository: Repository, streams: Streams) -> None:
    inbox, outbox = Inbox(repository), Outbox(repository)
    found = inbox.peek(max_tokens=sys.maxsize)
    cost = estimate(inherited_text(found))
    sessions = _last_sessions(repository.top, given.baseline or SESSION_FILES)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sessions]
    baseline = sum(map(estimate, texts)) if sessions else None
    facts = {
        "repository": repository.id,
        "inbox": str(inbox.folder),
        "items": [_facts(one) for one in found.shown],
        "tokens": cost,
        "baseline": baseline,
        "baseline_files": [str(path.relative_to(repository.top)) for path in sessions],
        "saved": None if baseline is None else baseline - cost,
        "unreadable": [{"name": one.name, "reason": one.reason} for one in found.rejected],
        "rejected": [{"name": one.name, "reason": one.reason} for one in inbox.rejected()],
        "processed": len(files.waiting(inbox.past)),
        "outbox": [path.name for path in outbox.waiting()],
    }
    streams.say(text=_status_text(facts), facts=facts, as_json=given.json)


def _status_text(facts: Mapping[str, Any]) -> str:
    lines = [f"{facts['repository']}: {facts['inbox']}"]
    lines += [
        f"  {one['tokens']:>5} tokens  {one['priority']:<6} {one['type']} from {one['from_session']}"
        for one in facts["items"]
    ]
    lines.append(f"{_count(len(facts['items']), 'item')} waiting; to inherit takes about {facts['tokens']} tokens")
    if facts["baseline"] is None:
        lines.append("No files of sessions to compare with")
    else:
        files = _count(len(facts["baseline_files"]), "file")
        lines.append(f"The last {files} of sessions: about {facts['baseline']} tokens; saved {facts['saved']}")
    lines += [one_line(f"  {one['name']} {one['reason']}; it will be rejected") for one in facts["unreadable"]]
    lines += [one_line(f"  rejected/{one['name']}: {one['reason']}") for one in facts["rejected"]]
    lines.append(f"Processed {facts['processed']}, in the outbox {len(facts['outbox'])}")
    return "\n".join(lines) + "\n"


def _last_sessions(top: Path, patterns: Sequence[str]) -> list[Path]:
    """The newest session files of a repository.

    :raises Refused: if a pattern is none.
    """
    found: set[Path] = set()
    for pattern in patterns:
        try:
            found |= {path for path in top.glob(pattern) if path.is_file()}
        except (NotImplementedError, ValueError) as exc:
            raise Refused(f"{pattern!r} names no files within the repository: {exc}.") from None
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)[:SEARCHED]


def _clean(given: Arguments, repository: Repository, streams: Streams) -> None:
    if not 0 <= given.keep_days <= _LONGEST_DAYS:
        raise Refused(f"--keep-days is a number from 0 to {_LONGEST_DAYS}.")
    names = files.clean(repository, kept=timedelta(days=given.keep_days), now=_now(), dry_run=given.dry_run)
    verb = "Would remove" if given.dry_run else "Removed"
    text = f"{verb} {_count(len(names), 'file')}\n" + "".join(f"  {name}\n" for name in names)
    streams.say(text=text, facts={"removed": names, "dry_run": given.dry_run}, as_json=given.json)


def _harvest(given: Arguments, repository: Repository, streams: Streams) -> None:
    session = _session(given)
    how = f"handoff leave --session {session} --type learning|caution|context|thread --priority high|medium|low -\n"
    streams.say(text=HARVEST + how, facts={"questions": HARVEST, "leave": how.strip()}, as_json=given.json)


def _place(given: Arguments, repository: Repository, streams: Streams) -> None:
    home = repository.place(in_tree=given.where == "tree")
    streams.say(text=f"Handoffs are in {home}\n", facts={"home": str(home)}, as_json=given.json)


def _sync(given: Arguments, repository: Repository, streams: Streams) -> None:
    token, url = os.environ.get("GATEHOUSE_TOKEN"), given.url or sync.running_url()
    if not token:
        raise Refused("Put the agent's token into GATEHOUSE_TOKEN (manage.py issue_token makes one).")
    if not url:
        raise Refused("Say where the hub is with --url, or once in GATEHOUSE_URL.")
    inbox, ask, synced = Inbox(repository), sync.hub(url, token), Synced()
    both = given.push == given.pull
    if given.pull or both:
        sync.pull(inbox, ask, into=synced)
    if given.push or both:
        sync.push(inbox, ask, recipient=given.to, now=_now(), into=synced)
    declined = [{"name": one.name, "reason": one.reason} for one in synced.declined]
    text = f"Pushed {_count(len(synced.pushed), 'item')}, pulled {_count(len(synced.pulled), 'item')}\n"
    text += "".join(one_line(f"  {one['name']} stays: {one['reason']}") + "\n" for one in declined)
    facts = {"pushed": synced.pushed, "pulled": synced.pulled, "declined": declined}
    streams.say(text=text, facts=facts, as_json=given.json)


def _facts(one: Found) -> dict[str, Any]:
    return {
        "name": one.path.name,
        "type": one.item.kind.value,
        "priority": one.item.priority.value,
        "from_session": one.item.from_session,
        "created": moment_text(one.item.created),
        "project": one.item.project,
        "receipt_id": one.item.receipt_id,
        "tokens": one.cost,
    }


def _session(given: Arguments, *, default: str | None = None) -> str:
    name = given.session or os.environ.get("HANDOFF_SESSION") or default
    if name is None:
        raise Refused("Say who you are with --session ID, or once in HANDOFF_SESSION.")
    return session_name(name)


def _body(given: Arguments, streams: Streams) -> str:
    """The text that is given, byte for byte.

    :raises Refused: if there is none, or it is no text.
    """
    if given.file is not None and given.text != "-":
        raise Refused("Give a text or --file, not both.")
    if given.text != "-":
        data = os.fsencode(given.text)
    elif given.file in {None, "-"}:
        data = streams.given.read(MAX_BYTES + 1)
    else:
        try:
            with Path(given.file).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as exc:
            raise Refused(f"{given.file}: {exc.strerror}.") from None
    try:
        body = data.decode()
    except UnicodeDecodeError:
        raise Refused("What you leave is not UTF-8.") from None
    if not body.strip():
        raise Refused("There is nothing to leave: the text is empty.")
    return body


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _now() -> datetime:
    return datetime.now(UTC)


def _session_of(who: str, default: str = "HANDOFF_SESSION") -> tuple[str, Mapping[str, Any]]:
    return "--session", {"metavar": "ID", "help": f"who {who} (default: {default})"}


_TEXT: Final = {"nargs": "?", "default": "-", "help": "the text; - or nothing: read it from standard input"}
_FILE: Final = ("--file", {"metavar": "F", "help": "read the text from this file; - is standard input"})
_PRIORITIES: Final = [priority.value for priority in Priority]
COMMANDS: Final = {
    "inherit": Command(
        "Show what earlier sessions have left, once",
        _inherit,
        (
            _session_of("inherits", "HANDOFF_SESSION, if set"),
            ("--max-tokens", {"type": int, "default": MAX_TOKENS, "metavar": "N", "help": "default: 500"}),
            ("--peek", {"action": "store_true", "help": "only look: what is shown goes on waiting"}),
        ),
    ),
    "leave": Command(
        "Leave something for the next session",
        _leave,
        (
            ("text", _TEXT),
            ("--type", {"required": True, "choices": [kind.value for kind in Kind], "help": "what it is"}),
            ("--priority", {"default": Priority.MEDIUM.value, "choices": _PRIORITIES}),
            _session_of("leaves it"),
            _FILE,
            ("--to", {"metavar": "PATH", "help": "leave it to the sessions of the repository there"}),
        ),
    ),
    "status": Command(
        "Say what waits, what it costs to read, and what that saves",
        _status,
        (("--baseline", {"action": "append", "metavar": "GLOB", "help": "the files of sessions to compare with"}),),
    ),
    "clean": Command(
        "Remove what was shown long ago",
        _clean,
        (
            ("--keep-days", {"type": float, "default": KEPT.days, "metavar": "N", "help": "since it was shown (30)"}),
            ("--dry-run", {"action": "store_true", "help": "only say what would go"}),
        ),
    ),
    "sync": Command(
        "Exchange items with the server, each of them once",
        _sync,
        (
            ("--url", {"help": "of the hub (default: GATEHOUSE_URL, else the one that runs from this product)"}),
            ("--push", {"action": "store_true", "help": "only send what was left here"}),
            ("--pull", {"action": "store_true", "help": "only fetch what waits there"}),
            ("--to", {"metavar": "NAME", "help": "the principal whose next session it is for (default: your own)"}),
        ),
    ),
    "harvest": Command("Ask what is worth leaving", _harvest, (_session_of("asks itself"),)),
    "place": Command(
        "Choose where the folders are",
        _place,
        (("where", {"choices": ["tree", "git"], "help": "folders in the main worktree, or within .git"}),),
    ),
}
OUTBOX: Final = {
    "put": Command(
        "Write a report for others",
        _put,
        (
            ("text", _TEXT),
            ("--type", {"required": True, "metavar": "TYPE", "help": "such as governance-report"}),
            ("--topic", {"default": "Session", "help": "stands in its heading"}),
            _session_of("reports"),
            _FILE,
        ),
    ),
    "list": Command("List the reports that wait", _list),
    "take": Command(
        "Take a report, as the one who was to have it",
        _take,
        (("name", {"nargs": "?", "help": "which; left out, the first by name"}),),
    ),
}


def _add_parsers(among: "argparse._SubParsersAction[Any]", verbs: Mapping[str, Command]) -> None:
    for name, command in verbs.items():
        parser = among.add_parser(name, help=command.help, description=command.help)
        for argument, settings in command.arguments:
            parser.add_argument(argument, **settings)
        parser.add_argument("--root", default=".", metavar="PATH", help="in the repository (default: where you are)")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(command=command)


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="handoff", description="What one session leaves to the next one.")
    verbs = parser.add_subparsers(dest="area", required=True, metavar="VERB")
    _add_parsers(verbs, COMMANDS)
    outbox = verbs.add_parser("outbox", help="Reports for others")
    _add_parsers(outbox.add_subparsers(dest="verb", required=True, metavar="VERB"), OUTBOX)
    given = parser.parse_args(arguments)
    try:
        streams = Streams.standard()
    except Refused as exc:
        if sys.stderr:
            sys.stderr.write(f"{exc}\n")
        return _REFUSED
    try:
        given.command.run(given, files.repository_of(Path(given.root)), streams)
    except Refused as exc:
        streams.complain(str(exc))
        return _REFUSED
    except BrokenPipeError:
        # Nobody reads: the interpreter must not try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as exc:
        streams.complain(f"{exc.filename or given.root}: {exc.strerror or exc}.")
        return _REFUSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
