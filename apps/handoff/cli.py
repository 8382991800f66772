"""The commands, as `bin/handoff` and `manage.py` offer them: each reads its arguments, does one thing and says so."""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TextIO

from apps.handoff import folders, lint, places, relocating, sync, tokens
from apps.handoff.errors import Refused, Unreadable
from apps.handoff.files import KEPT, Found, Inbox, Inheritance
from apps.handoff.items import MAX_BYTES, Item, Kind, Priority, moment_text, one_line, session_name, stamp
from apps.handoff.outbox import Outbox
from apps.handoff.places import Repository
from apps.handoff.sync import Crossed

MAX_TOKENS: Final = 500
TITLE: Final = "◈ INHERIT\n"
NOTHING: Final = "No inheritance items\n"
_REFUSED: Final = 2
_INTERRUPTED: Final = 130
_LONGEST_DAYS: Final = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a command reads a body from, and whom it tells what."""

    given: BinaryIO
    out: TextIO
    err: TextIO

    @classmethod
    def standard(cls) -> Self:
        """The process's own, in UTF-8. What is written is written to its end, which Python's own standard output does
        not promise where PYTHONUNBUFFERED is set: it drops the rest of what a pipe took a part of.

        :raises Refused: if there is no standard output, so that nothing counts as shown.
        """
        # Where the interpreter began without one of them, the number may be any file's by now.
        err = _opened(2, buffering=1) if sys.stderr else io.StringIO()
        if sys.stdout is None:
            raise Refused("There is no standard output to answer on.")
        given = sys.stdin.buffer if sys.stdin else io.BytesIO()
        return cls(given=given, out=_opened(1, buffering=-1), err=err)

    def complain(self, sentence: str) -> None:
        """To whoever reads it; the exit code says the rest."""
        with suppress(OSError):
            self.err.write(f"{sentence}\n")

    def say(self, *, text: str, told: Mapping[str, Any], as_json: bool) -> None:
        """Either form, out of the process before this returns."""
        self.out.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n" if as_json else text)
        self.out.flush()


def _opened(descriptor: int, *, buffering: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=buffering, closefd=False)


Arguments = argparse.Namespace
AddTo = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class Command:
    """One verb: what it takes, and what it does."""

    help: str
    add_to: AddTo
    run: Callable[[Arguments, Repository, Streams], None]


def _add_inherit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="ID", help="who inherits (default: HANDOFF_SESSION, else a name is made)")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="default: 500")
    parser.add_argument("--peek", action="store_true", help="only look: what is shown goes on waiting")


def _inherit(given: Arguments, repository: Repository, streams: Streams) -> None:
    if given.max_tokens < 1:
        raise Refused("--max-tokens is a number from 1.")
    inbox = Inbox(repository)
    if given.peek:
        _show(inbox.peek(max_tokens=given.max_tokens), given, streams)
        return
    session = _session(given) or f"session-{stamp(_now())}"
    with inbox.inherit(session, max_tokens=given.max_tokens, now=_now()) as found:
        _show(found, given, streams)


def _show(found: Inheritance, given: Arguments, streams: Streams) -> None:
    text = inherited_text(found)
    told = {
        "items": [{**_told(one), "body": one.item.body} for one in found.shown],
        "waiting": len(found.waiting),
        "waiting_tokens": sum(one.cost for one in found.waiting),
        "rejected": [{"name": one.name, "reason": one.reason} for one in found.rejected],
        "tokens": tokens.estimate(text),
    }
    streams.say(text=text, told=told, as_json=given.json)


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


def _add_leave(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", default="-", help="what to leave; - or nothing: read it from standard input")
    parser.add_argument("--type", required=True, choices=[kind.value for kind in Kind], help="what it is")
    parser.add_argument("--priority", default=Priority.MEDIUM.value, choices=[one.value for one in Priority])
    parser.add_argument("--session", metavar="ID", help="who leaves it (default: HANDOFF_SESSION)")
    parser.add_argument("--file", metavar="F", help="read it from this file; - is standard input")
    parser.add_argument("--to", metavar="PATH", help="leave it to the sessions of the repository there")


def _leave(given: Arguments, repository: Repository, streams: Streams) -> None:
    now = _now()
    item = Item(
        from_session=_required_session(given),
        kind=Kind(given.type),
        priority=Priority(given.priority),
        created=now.replace(microsecond=0),
        body=_body(given, streams),
    )
    warnings = lint.warnings(item.kind, item.body)
    try:
        if given.to is None:
            path = Inbox(repository).leave(item, now=now)
        else:
            path = Inbox(places.find(Path(given.to))).leave_from(repository, item, now=now)
    except Unreadable as exc:
        raise Refused(f"What you leave {exc}.") from None
    cost = tokens.estimate(item.shown(in_project=None))
    for warning in warnings:
        streams.complain(f"Warning: {warning}.")
    told = {"name": path.name, "path": str(path), "tokens": cost, "warnings": warnings}
    streams.say(text=f"Left {path.name}, about {cost} tokens\n", told=told, as_json=given.json)


def _add_put(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", default="-", help="the report; - or nothing: read it from standard input")
    parser.add_argument("--type", required=True, metavar="TYPE", help="such as governance-report")
    parser.add_argument("--topic", default="Session", help="stands in its heading")
    parser.add_argument("--session", metavar="ID", help="who reports (default: HANDOFF_SESSION)")
    parser.add_argument("--file", metavar="F", help="read it from this file; - is standard input")


def _put(given: Arguments, repository: Repository, streams: Streams) -> None:
    path = Outbox(repository).put(
        report_type=given.type,
        session=_required_session(given),
        topic=" ".join(given.topic.split()),
        body=_body(given, streams),
        now=_now(),
    )
    streams.say(text=f"Put {path.name}\n", told={"name": path.name, "path": str(path)}, as_json=given.json)


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """For verbs that take nothing but what all take."""


def _list(given: Arguments, repository: Repository, streams: Streams) -> None:
    names = [path.name for path in Outbox(repository).waiting()]
    text = "".join(f"{one_line(name)}\n" for name in names) or "The outbox is empty\n"
    streams.say(text=text, told={"reports": names}, as_json=given.json)


def _add_take(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="which; left out, the first by name")
    parser.add_argument("--consumer", default="consumer", metavar="ID", help="who takes it")


def _take(given: Arguments, repository: Repository, streams: Streams) -> None:
    consumer = session_name(given.consumer)
    with Outbox(repository).take(given.name, consumer=consumer, now=_now()) as report:
        if report is None:
            streams.say(text="The outbox is empty\n", told={"report": None}, as_json=given.json)
            return
        text = report.decode("utf-8", "replace")
        streams.say(text=text, told={"report": text}, as_json=given.json)


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baseline", action="append", metavar="GLOB", help="the files of sessions to compare with")


def _status(given: Arguments, repository: Repository, streams: Streams) -> None:
    inbox, outbox = Inbox(repository), Outbox(repository)
    found = inbox.peek(max_tokens=sys.maxsize)
    cost = tokens.estimate(inherited_text(found))
    sessions = tokens.last_sessions(repository.top, given.baseline or tokens.SESSION_FILES)
    baseline = tokens.cost_of(sessions) if sessions else None
    told = {
        "repository": repository.id,
        "inbox": str(inbox.folder),
        "items": [_told(one) for one in found.shown],
        "tokens": cost,
        "baseline": baseline,
        "baseline_files": [str(path.relative_to(repository.top)) for path in sessions],
        "saved": None if baseline is None else baseline - cost,
        "unreadable": [{"name": one.name, "reason": one.reason} for one in found.rejected],
        "rejected": [{"name": one.name, "reason": one.reason} for one in inbox.rejected()],
        "processed": len(folders.waiting(inbox.processed.folder)),
        "outbox": [path.name for path in outbox.waiting()],
    }
    streams.say(text=_status_text(told), told=told, as_json=given.json)


def _status_text(told: Mapping[str, Any]) -> str:
    lines = [f"{told['repository']}: {told['inbox']}"]
    lines += [
        f"  {one['tokens']:>5} tokens  {one['priority']:<6} {one['type']} from {one['from_session']}"
        for one in told["items"]
    ]
    lines.append(f"{_count(len(told['items']), 'item')} waiting; to inherit takes about {told['tokens']} tokens")
    if told["baseline"] is None:
        lines.append("No files of sessions to compare with")
    else:
        files = _count(len(told["baseline_files"]), "file")
        lines.append(f"The last {files} of sessions: about {told['baseline']} tokens; saved {told['saved']}")
    lines += [one_line(f"  {one['name']} {one['reason']}; it will be rejected") for one in told["unreadable"]]
    lines += [one_line(f"  rejected/{one['name']}: {one['reason']}") for one in told["rejected"]]
    lines.append(f"Processed {told['processed']}, in the outbox {len(told['outbox'])}")
    return "\n".join(lines) + "\n"


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-days", type=float, default=KEPT.days, metavar="N", help="since it was shown (default: 30)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def _clean(given: Arguments, repository: Repository, streams: Streams) -> None:
    if not 0 <= given.keep_days <= _LONGEST_DAYS:
        raise Refused(f"--keep-days is a number from 0 to {_LONGEST_DAYS}.")
    names = cleaned(repository, kept=timedelta(days=given.keep_days), now=_now(), dry_run=given.dry_run)
    verb = "Would remove" if given.dry_run else "Removed"
    text = f"{verb} {_count(len(names), 'file')}\n" + "".join(f"  {name}\n" for name in names)
    streams.say(text=text, told={"removed": names, "dry_run": given.dry_run}, as_json=given.json)


def cleaned(repository: Repository, *, kept: timedelta, now: datetime, dry_run: bool = False) -> list[str]:
    """Remove what was shown or taken longer ago than it is kept; answers what."""
    gone = Inbox(repository).clean(kept=kept, now=now, dry_run=dry_run)
    gone += Outbox(repository).clean(kept=kept, now=now, dry_run=dry_run)
    return [str(path.relative_to(repository.home)) for path in gone]


def _add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="ID", help="who asks itself (default: HANDOFF_SESSION)")


def _harvest(given: Arguments, repository: Repository, streams: Streams) -> None:
    session = _required_session(given)
    how = f"handoff leave --session {session} --type learning|caution|context|thread --priority high|medium|low -\n"
    streams.say(text=lint.HARVEST + how, told={"questions": lint.HARVEST, "leave": how.strip()}, as_json=given.json)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", choices=["tree", "git"], help="folders in the main worktree, or within .git")


def _place(given: Arguments, repository: Repository, streams: Streams) -> None:
    home = relocating.settle(repository, in_tree=given.where == "tree")
    streams.say(text=f"Handoffs are in {home}\n", told={"home": str(home)}, as_json=given.json)


def _add_sync(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="of the hub (default: GATEHOUSE_URL, else the one that runs from this product)")
    parser.add_argument("--push", action="store_true", help="only carry there what was left here")
    parser.add_argument("--pull", action="store_true", help="only fetch what waits there")
    parser.add_argument("--to", metavar="NAME", help="the principal whose next session it is for (default: your own)")
    parser.add_argument(
        "--take-back", action="store_true", help="also fetch what was carried there from here and waits"
    )


def _sync(given: Arguments, repository: Repository, streams: Streams) -> None:
    token, url = os.environ.get("GATEHOUSE_TOKEN"), given.url or sync.standing_url()
    if not token:
        raise Refused("Put the agent's token into GATEHOUSE_TOKEN (manage.py issue_token makes one).")
    if not url:
        raise Refused("Say where the hub is with --url, or once in GATEHOUSE_URL.")
    inbox, ask, crossed = Inbox(repository), sync.hub(url, token), Crossed()
    both = given.push == given.pull
    if given.pull or both:
        sync.pull(inbox, ask, take_back=given.take_back, now=_now(), into=crossed)
    if given.push or both:
        sync.push(inbox, ask, recipient=given.to, now=_now(), into=crossed)
    declined = [{"name": one.name, "reason": one.reason} for one in crossed.declined]
    text = f"Pushed {_count(len(crossed.pushed), 'item')}, pulled {_count(len(crossed.pulled), 'item')}\n"
    text += "".join(one_line(f"  {one['name']} stays: {one['reason']}") + "\n" for one in declined)
    told = {"pushed": crossed.pushed, "pulled": crossed.pulled, "declined": declined}
    streams.say(text=text, told=told, as_json=given.json)


def _told(one: Found) -> dict[str, Any]:
    return {
        "name": one.name,
        "type": one.item.kind.value,
        "priority": one.item.priority.value,
        "from_session": one.item.from_session,
        "created": moment_text(one.item.created),
        "project": one.item.project,
        "receipt_id": one.item.receipt_id,
        "tokens": one.cost,
    }


def _session(given: Arguments) -> str | None:
    name = given.session or os.environ.get("HANDOFF_SESSION")
    return session_name(name) if name else None


def _required_session(given: Arguments) -> str:
    session = _session(given)
    if session is None:
        raise Refused("Say who you are with --session ID, or once in HANDOFF_SESSION.")
    return session


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
        data = _file(Path(given.file))
    try:
        body = data.decode()
    except UnicodeDecodeError:
        raise Refused("What you leave is not UTF-8.") from None
    if not body.strip():
        raise Refused("There is nothing to leave: the text is empty.")
    return body


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise Refused(f"{path}: {exc.strerror}.") from None


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _now() -> datetime:
    return datetime.now(UTC)


COMMANDS: Final = {
    "inherit": Command("Show what earlier sessions have left, once", _add_inherit, _inherit),
    "leave": Command("Leave something for the next session", _add_leave, _leave),
}
OUTBOX: Final = {
    "put": Command("Write a report for others", _add_put, _put),
    "list": Command("List the reports that wait", _add_nothing, _list),
    "take": Command("Take a report, as the one who was to have it", _add_take, _take),
}
HANDOFF: Final = {
    "status": Command("Say what waits, what it costs to read, and what that saves", _add_status, _status),
    "clean": Command("Remove what was shown long ago", _add_clean, _clean),
    "sync": Command("Exchange items with the server, each of them once", _add_sync, _sync),
    "harvest": Command("Ask what is worth leaving", _add_session, _harvest),
    "place": Command("Choose where the folders are", _add_place, _place),
}


def add_common(parser: argparse.ArgumentParser) -> None:
    """What every verb takes."""
    parser.add_argument("--root", default=".", metavar="PATH", help="in the repository (default: where you are)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_verbs(parser: argparse.ArgumentParser, verbs: Mapping[str, Command]) -> None:
    """One sub-parser for each verb; each sets `command`."""
    _add_parsers(parser.add_subparsers(dest="verb", required=True, metavar="VERB"), verbs)


def _add_parsers(among: "argparse._SubParsersAction[Any]", verbs: Mapping[str, Command]) -> None:
    for name, command in verbs.items():
        described = among.add_parser(name, help=command.help, description=command.help)
        command.add_to(described)
        add_common(described)
        described.set_defaults(command=command)


def run(command: Command, given: Arguments, streams: Streams) -> None:
    """:raises Refused: in plain words, also for what the system refuses."""
    try:
        command.run(given, places.find(Path(given.root)), streams)
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise Refused(f"{exc.filename or given.root}: {exc.strerror or exc}.") from exc


def main(arguments: Sequence[str]) -> int:
    """`bin/handoff`: the exit code."""
    parser = argparse.ArgumentParser(prog="handoff", description="What one session leaves to the next one.")
    verbs = parser.add_subparsers(dest="area", required=True, metavar="VERB")
    _add_parsers(verbs, {**COMMANDS, **HANDOFF})
    add_verbs(verbs.add_parser("outbox", help="Reports for others"), OUTBOX)
    given = parser.parse_args(arguments)
    try:
        streams = Streams.standard()
    except Refused as exc:
        if sys.stderr:
            sys.stderr.write(f"{exc}\n")
        return _REFUSED
    try:
        run(given.command, given, streams)
    except Refused as exc:
        streams.complain(str(exc))
        return _REFUSED
    except BrokenPipeError:
        drop_output()
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def drop_output() -> None:
    """Where nobody reads what is printed, the interpreter must not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
