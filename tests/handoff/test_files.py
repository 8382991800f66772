"""The protocol of files: one item as a file, real repositories and processes, and what they may do to each other."""

import fcntl
import os
import shutil
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from apps.handoff import files
from apps.handoff.items import MAX_BYTES, Item, Kind, Priority, Refused, Unreadable, session_name, warnings
from tests.handoff.conftest import (
    NOON,
    PRODUCT,
    answered,
    at_once,
    bodies,
    environment,
    git,
    handoff,
    inbox_of,
    item,
    leave,
    make_repository,
)
from tests.waiters import until

WRITE = """
inbox.leave(Item(from_session="s", kind=Kind.LEARNING, priority=Priority.LOW, created=NOW, body=f"{number}\\n"), now=NOW)
"""
READ = """
with inbox.inherit(max_tokens=10_000, now=NOW) as found:
    os.write(1, "".join(one.item.body for one in found.shown).encode())
"""


REJECT = """
with inbox.inherit(max_tokens=10_000, now=NOW) as found:
    os.write(1, "".join(f"{one.name}\\n" for one in found.rejected).encode())
"""


def test_fifty_writers_in_one_millisecond_leave_fifty_files(root: Path) -> None:
    at_once(root, 50, WRITE)
    assert sorted(bodies(root, max_tokens=100_000)) == sorted(f"{number}\n" for number in range(50))


def test_concurrent_sessions_share_the_items(root: Path) -> None:
    at_once(root, 40, WRITE)
    shown = at_once(root, 8, READ).split()
    assert Counter(shown) == Counter(str(number) for number in range(40))
    assert bodies(root) == []
    assert len(files.waiting(inbox_of(root).past)) == 40


def test_concurrent_writers_and_readers_lose_nothing(root: Path) -> None:
    both = "if number % 2:\n    " + WRITE.strip() + "\nelse:\n    " + READ.strip().replace("\n", "\n    ")
    shown = at_once(root, 40, both).split() + [body.strip() for body in bodies(root, max_tokens=100_000)]
    assert Counter(shown) == Counter(str(number) for number in range(1, 40, 2))


def start_reading(root: Path, many: int) -> "subprocess.Popen[bytes]":
    """A session that is in the middle of being shown items: nobody reads its pipe, which is full."""
    for number in range(many):
        leave(root, f"{number} " + "x" * 30_000)
    process = subprocess.Popen(
        [PRODUCT / "bin" / "handoff", "inherit", "--session", "first", "--max-tokens", "1000000", "--root", root],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    until(lambda: is_read(root), "nobody reads", seconds=30)
    return process


def is_read(root: Path) -> bool:
    """Whether a session reads the inbox just now."""
    with (inbox_of(root).folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_items_of_a_killed_session_are_shown_to_the_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start_reading(root, 4)
    monkeypatch.setattr(files, "_PATIENCE", timedelta(0))
    with pytest.raises(Refused, match="Another session is reading"):
        bodies(root)
    assert len(answered("inherit", "--peek", "--max-tokens", "1000000", root=root)["items"]) == 4
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [body[0] for body in sorted(bodies(root, max_tokens=10**6))] == ["0", "1", "2", "3"]
    assert bodies(root) == []


def test_output_that_nobody_reads_does_not_count_as_shown(root: Path) -> None:
    process = start_reading(root, 4)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert len(bodies(root, max_tokens=10**6)) == 4


def test_error_while_showing_leaves_items_waiting(root: Path) -> None:
    leave(root)
    with pytest.raises(RuntimeError), inbox_of(root).inherit(max_tokens=500, now=NOON):
        raise RuntimeError
    assert len(inbox_of(root).waiting()) == 1
    assert len(bodies(root)) == 1


def test_item_outlives_its_worktree_and_git_ignores_it(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(root, "worktree", "add", "-q", str(tree))
    answered("leave", "--type", "learning", "--session", "a", "From the worktree", root=tree)
    assert (git(root, "status", "--porcelain"), git(tree, "status", "--porcelain")) == ("", "")
    git(root, "worktree", "remove", str(tree))
    assert [one["body"] for one in answered("inherit", root=root)["items"]] == ["From the worktree"]
    assert git(root, "status", "--porcelain") == ""


def test_folders_may_be_in_the_main_worktree(root: Path, tmp_path: Path) -> None:
    leave(root, "Before\n")
    assert "wait" in handoff("place", "tree", root=root).stderr
    bodies(root)
    (root / "inbox").mkdir()
    (root / "inbox" / "photo.png").touch()
    assert "no file of handoffs" in handoff("place", "tree", root=root).stderr
    (root / "inbox" / "photo.png").rename(root / "inbox" / ".gitkeep")
    (root / "inbox" / "1736528400-learning.md").write_bytes(item("By the protocol\n").to_bytes())
    answered("place", "tree", root=root)
    tree = tmp_path / "tree"
    git(root, "worktree", "add", "-q", str(tree))
    answered("leave", "--type", "learning", "--session", "a", "From the worktree", root=tree)
    answered("outbox", "put", "--type", "governance-report", "--session", "a", "All well", root=tree)
    assert git(root, "status", "--porcelain", "--untracked-files=all") == ""
    assert len(answered("inherit", root=tree)["items"]) == 2
    answered("outbox", "take", root=root)
    for folder in (root, tree):
        assert git(folder, "status", "--porcelain", "--untracked-files=all") == ""
    assert answered("place", "git", root=root)["home"].endswith(".git/handoff")


def test_clone_has_no_inbox(root: Path, tmp_path: Path) -> None:
    """Or whoever one clones from could leave one something."""
    answered("place", "tree", root=root)
    leave(root)
    git(root, "add", "-f", "inbox")
    git(root, "commit", "-q", "-m", "Force")
    git(tmp_path, "clone", "-q", str(root), "clone")
    assert (tmp_path / "clone" / "inbox").is_dir()
    assert answered("inherit", root=tmp_path / "clone")["items"] == []


def test_inbox_that_is_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    answered("place", "tree", root=root)
    (tmp_path / "elsewhere").mkdir()
    (root / "inbox").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="not a folder of its own"):
        leave(root)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_behind_links_are_not_touched(root: Path) -> None:
    answered("place", "tree", root=root)
    leave(root)
    bodies(root)
    (root / "docs" / "more").mkdir(parents=True)
    for name in ("a.md", "more/a.md"):
        (root / "docs" / name).write_bytes(item("A page of the repository\n").to_bytes())
    for place in (root / "inbox" / "processed", root / "outbox" / "taken"):
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(root / "docs")
        for arguments in (("inherit",), ("clean", "--keep-days", "0"), ("outbox", "take")):
            done = handoff(*arguments, root=root)
            assert "Traceback" not in done.stderr
        assert "not a folder of its own" in handoff("clean", "--keep-days", "0", root=root).stderr
        place.unlink()
    assert sorted(path.name for path in (root / "docs").rglob("*")) == ["a.md", "a.md", "more"]


def test_bad_files_are_rejected_and_others_delivered(root: Path, tmp_path: Path) -> None:
    good = leave(root, "A good one\n")
    folder = good.parent
    secret = tmp_path / "secret"
    secret.write_bytes(item("A secret\n").to_bytes())
    (folder / "plain.md").write_text("no front matter")
    (folder / "large.md").write_bytes(good.read_bytes() + b"x" * 65_536)
    (folder / "link.md").symlink_to(secret)
    (folder / "dangling.md").symlink_to(tmp_path / "nowhere")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / os.fsdecode(b"\xff\n.md")).write_text("an odd name")
    (folder / ("n" * 252 + ".md")).write_text("a long name")
    told = answered("inherit", root=root)
    assert [one["body"] for one in told["items"]] == ["A good one\n"]
    reasons = {one["name"]: one["reason"] for one in told["rejected"]}
    assert reasons["link.md"] == reasons["dangling.md"] == "is a link"
    assert reasons["folder.md"] == reasons["pipe.md"] == "is no plain file"
    assert (reasons["large.md"], len(reasons)) == ("is over 64 KiB", 8)
    rejected = folder / "rejected"
    assert len(list(rejected.glob("*.reason.txt"))) == len(files.waiting(rejected)) == 8
    assert (secret.exists(), files.waiting(folder)) == (True, [])
    assert {one["reason"] for one in answered("status", root=root)["rejected"]} > {
        "plain.md has no front matter between two lines of ---."
    }


def test_bad_file_is_rejected_by_one_process(root: Path) -> None:
    inbox = inbox_of(root)
    inbox.folder.mkdir(parents=True)
    for number in range(20):
        (inbox.folder / f"{number}.md").write_text("no item")
    told = at_once(root, 8, REJECT).split()
    assert Counter(told) == Counter(f"{number}.md" for number in range(20))
    rejected = inbox.folder / "rejected"
    assert len(list(rejected.glob("*.reason.txt"))) == len(files.waiting(rejected)) == 20


def test_control_characters_in_names_are_escaped(root: Path) -> None:
    folder = leave(root).parent
    (folder / "a\x1b[2J\nb.md").write_text("no item")
    (folder.parent / "outbox").mkdir()
    (folder.parent / "outbox" / "r\x1b[2J\n.md").write_text("a report")
    before = handoff("status", root=root).stdout
    assert "\n  a\\x1b[2J\\nb.md has no front matter" in before
    handoff("inherit", root=root)
    told = before + handoff("status", root=root).stdout + handoff("outbox", "list", root=root).stdout
    assert "r\\x1b[2J\\n.md\n" in told
    assert "\x1b" not in told


def test_peek_changes_nothing(root: Path) -> None:
    leave(root)
    (inbox_of(root).folder / "bad.md").write_text("no item")
    before = sorted(path for path in inbox_of(root).folder.rglob("*"))
    told = answered("inherit", "--peek", root=root)
    assert (len(told["items"]), len(told["rejected"])) == (1, 1)
    assert sorted(path for path in inbox_of(root).folder.rglob("*")) == before


def test_processed_files_of_one_name_are_all_kept(root: Path) -> None:
    folder = leave(root).parent
    bodies(root)
    for body in ("first\n", "second\n"):
        (folder / "learning.md").write_bytes(item(body).to_bytes())
        assert bodies(root) == [body]
    kept = [path.read_bytes() for path in files.waiting(folder / "processed")]
    assert sorted(data.rsplit(b"\n\n", 1)[1] for data in kept) == [b"Do this next\n", b"first\n", b"second\n"]


def test_retention_counts_from_the_processing(root: Path) -> None:
    path = leave(root, created=NOON - timedelta(days=40))
    old = (NOON - timedelta(days=40)).timestamp()
    os.utime(path, (old, old))
    bodies(root, now=NOON)
    kept = timedelta(days=30)
    inbox = inbox_of(root)
    assert inbox.clean(kept=kept, now=NOON + timedelta(days=29, hours=23), dry_run=False) == []
    assert len(inbox.clean(kept=kept, now=NOON + timedelta(days=30), dry_run=True)) == 1
    assert len(files.waiting(inbox.past)) == 1
    assert len(inbox.clean(kept=kept, now=NOON + timedelta(days=30), dry_run=False)) == 1
    assert files.waiting(inbox.past) == []


def test_waiting_items_are_never_cleaned(root: Path) -> None:
    leave(root, created=NOON - timedelta(days=4000))
    (inbox_of(root).folder / "rejected").mkdir()
    (inbox_of(root).folder / "rejected" / "bad.md").touch()
    assert inbox_of(root).clean(kept=timedelta(0), now=NOON, dry_run=False) == []
    assert len(bodies(root)) == 1


def test_half_written_files_are_cleaned_after_an_hour(root: Path) -> None:
    folder = leave(root).parent
    half = folder / ".0011223344556677.tmp"
    half.write_text("---\n")
    written = half.stat().st_mtime
    moment = NOON.fromtimestamp(written, NOON.tzinfo)
    assert inbox_of(root).clean(kept=timedelta(1), now=moment + timedelta(minutes=59), dry_run=False) == []
    assert inbox_of(root).clean(kept=timedelta(1), now=moment + timedelta(minutes=61), dry_run=False) == [half]
    assert len(bodies(root)) == 1


def test_items_are_shown_by_priority_within_the_budget(root: Path) -> None:
    text = "x" * 400 + "\n"
    for number, (kind, priority) in enumerate(
        [
            (Kind.LEARNING, Priority.LOW),
            (Kind.CAUTION, Priority.LOW),
            (Kind.CONTEXT, Priority.MEDIUM),
            (Kind.THREAD, Priority.HIGH),
            (Kind.CAUTION, Priority.HIGH),
        ]
    ):
        leave(root, f"{number} {text}", kind=kind, priority=priority, created=NOON + timedelta(seconds=number))
    told = answered("inherit", "--max-tokens", "350", root=root)
    assert [one["body"][0] for one in told["items"]] == ["3", "4", "1"]
    assert told["waiting"] == 2
    assert told["tokens"] == pytest.approx(sum(one["tokens"] for one in told["items"]), abs=25)
    done = handoff("inherit", "--max-tokens", "1", root=root)
    assert "1 more item waiting" in done.stdout
    assert len(answered("inherit", root=root)["items"]) == 1


def test_less_urgent_item_does_not_overtake(root: Path) -> None:
    for number, size in enumerate((100, 1000, 100)):
        leave(root, f"{number} " + "x" * size, created=NOON + timedelta(seconds=number))
    assert [body[0] for body in bodies(root, max_tokens=100)] == ["0"]
    assert [body[0] for body in bodies(root)] == ["1", "2"]


def test_item_larger_than_the_budget_is_shown_alone(root: Path) -> None:
    leave(root, "x" * 5000)
    assert len(bodies(root, max_tokens=10)) == 1


def test_taken_name_is_not_overwritten(root: Path) -> None:
    folder = leave(root).parent
    for data, written in ((b"first", "a.md"), (b"second", "b.md")):
        names = iter(["a.md", "b.md"])
        assert files.write_new(folder, names.__next__, data).name == written
    assert ((folder / "a.md").read_bytes(), (folder / "b.md").read_bytes()) == (b"first", b"second")


def test_item_is_written_whole_or_not_at_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leave(root).parent
    monkeypatch.setattr(os, "fsync", _no_sync)
    with pytest.raises(OSError, match="No space"):
        leave(root, "Second\n")
    monkeypatch.undo()
    assert [path.suffix for path in folder.iterdir() if path.suffix in {".md", ".tmp"}] == [".md"]


def _no_sync(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_shared_inbox_that_is_a_link_is_ignored(root: Path, tmp_path: Path) -> None:
    answered("place", "tree", root=root)
    there = tmp_path / "elsewhere" / "from-x-1"
    there.mkdir(parents=True)
    (there / "secret.md").write_bytes(item("A secret\n").to_bytes())
    (root / "shared-inbox").symlink_to(there.parent)
    assert bodies(root) == []


def test_repositories_hand_over_to_each_other(tmp_path: Path) -> None:
    web = make_repository(tmp_path / "one" / "web", origin="https://user:secret@Example.org/team/web.git")
    api = make_repository(tmp_path / "two" / "api")
    answered("leave", "--type", "thread", "--session", "a", "--to", str(api), "Next: call the new door", root=web)
    name = f"from-{inbox_of(web).repository.id}"
    assert name.startswith("from-web-")
    assert (inbox_of(api).repository.home / "shared-inbox" / name).is_dir()
    text = handoff("inherit", root=api).stdout
    assert text.startswith(f"◈ INHERIT\n[thread from a in {name.removeprefix('from-')}]\n> Next")
    assert answered("inherit", root=api)["items"] == answered("inherit", root=web)["items"] == []
    for folder in (web, api):
        assert git(folder, "status", "--porcelain") == ""


def test_item_of_another_repository_stays_in_its_folder(root: Path) -> None:
    """So that it is still shown as that one's, and is not carried to a server as one's own."""
    there = inbox_of(root).repository.home / "shared-inbox" / "from-other-1"
    there.mkdir(parents=True)
    (there / "by-hand.md").write_bytes(item("First\n").to_bytes())
    with pytest.raises(RuntimeError), inbox_of(root).inherit(max_tokens=500, now=NOON):
        raise RuntimeError
    assert files.waiting(there) == [there / "by-hand.md"]
    assert "[learning from 2026-01-10-auth in other-1]\n> First\n" in handoff("inherit", root=root).stdout
    assert files.waiting(there) == []


@pytest.mark.parametrize(
    "origin",
    [
        "https://example.org/team/web",
        "https://example.org/team/web.git",
        "https://someone:password@EXAMPLE.org:443/team/web.git/",
        "ssh://git@example.org/team/web.git",
        "git@example.org:team/web.git",
    ],
)
def test_repository_id_is_the_same_for_all_urls_of_an_origin(tmp_path: Path, origin: str) -> None:
    named = inbox_of(make_repository(tmp_path / "x", origin=origin)).repository.id
    assert named == inbox_of(make_repository(tmp_path / "y", origin="https://example.org/team/web")).repository.id
    assert named != inbox_of(make_repository(tmp_path / "z", origin="https://example.org/other/web")).repository.id


def test_bare_repository_and_submodule_have_an_inbox(tmp_path: Path, root: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(root), "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "tree"), "main")
    leave(tmp_path / "tree", "In a tree\n")
    assert bodies(tmp_path / "bare.git") == ["In a tree\n"]
    assert handoff("place", "tree", root=tmp_path / "tree").returncode == 2
    outer = make_repository(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(root), "inner")
    leave(outer / "inner", "In a submodule\n")
    assert (bodies(outer), bodies(outer / "inner")) == ([], ["In a submodule\n"])


HEAD = "from_session: 2026-01-10-auth\ntype: learning\npriority: high\ncreated: 2026-01-10T18:30:00Z\n"
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=300)


def file_of(head: str = HEAD, body: str = "Something\n") -> bytes:
    return f"---\n{head}---\n\n{body}".encode()


@example("---\ntype: caution\n---\n", "s", Kind.LEARNING, Priority.LOW, NOON)
@example("\n\n\r\nCRLF\r\n---\r\n\ufeffa mark", "s", Kind.LEARNING, Priority.LOW, NOON)
@given(
    body=TEXTS.filter(str.strip),
    sender=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,60}", fullmatch=True)
    | st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=60),
    kind=st.sampled_from(Kind),
    priority=st.sampled_from(Priority),
    created=st.datetimes(timezones=st.just(UTC)),
)
def test_what_is_written_is_read_as_it_was(
    body: str, sender: str, kind: Kind, priority: Priority, created: datetime
) -> None:
    written = Item(
        from_session=sender,
        kind=kind,
        priority=priority,
        created=created.replace(microsecond=0),
        body=body,
        project="web-12ab34cd",
    )
    assert Item.from_bytes(written.to_bytes()) == written
    assert written.to_bytes().endswith(body.encode())


def test_a_mark_of_the_byte_order_and_the_line_ends_of_other_systems_are_tolerated() -> None:
    there = "\ufeff" + file_of().decode().replace("\n", "\r\n")
    assert Item.from_bytes(there.encode()).body == "Something\r\n"


@pytest.mark.parametrize(
    ("created", "moment"),
    [
        ("2026-01-10T18:30:00+02:00", datetime(2026, 1, 10, 18, 30, tzinfo=timezone(timedelta(hours=2)))),
        ("2026-01-10T18:30:00", datetime(2026, 1, 10, 18, 30, tzinfo=UTC)),
        ("2026-01-10", datetime(2026, 1, 10, tzinfo=UTC)),
    ],
)
def test_moments_keep_their_whole_text(created: str, moment: datetime) -> None:
    assert Item.from_bytes(file_of(HEAD.replace("2026-01-10T18:30:00Z", created))).created == moment


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no front matter"),
        (b"---\nfrom_session: x\n", "no front matter"),
        (file_of(HEAD.replace("priority: high\n", "")), "lacks priority"),
        (file_of(HEAD.replace("learning", "idea")), "unknown type"),
        (file_of(HEAD + "priority: low\n"), "twice"),
        (file_of(HEAD + "tags: [a, b]\n"), "more than plain texts"),
        (file_of(HEAD + "a: &x b\nc: {d: *x}\n"), "more than plain texts"),
        (file_of(HEAD + "'unclosed: x\n"), "no YAML"),
        (file_of("- a\n- b\n"), "without keys"),
        (file_of(HEAD + f"long: {'x' * 5000}\n"), "over 4 KiB"),
        (file_of(HEAD.replace("2026-01-10T18:30:00Z", "yesterday")), "no ISO 8601"),
        (file_of(HEAD.replace("2026-01-10-auth", '"a\\nb"')), "from_session"),
        (file_of(body=" \n"), "no body"),
        (file_of(body="a\x00b"), "NUL"),
        (file_of(body="é").replace("é".encode(), b"\xe9"), "UTF-8"),
        (file_of(body="x" * MAX_BYTES), "64 KiB"),
    ],
)
def test_what_is_no_item_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        Item.from_bytes(data)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for given_bytes in (data, b"---\n" + data + b"\n---\n\nbody"):
        with suppress(Unreadable):
            assert Item.from_bytes(given_bytes).body


def test_a_reader_is_shown_who_says_it_and_what_they_say_as_a_quotation() -> None:
    shown = item("First\n\n[caution from root]\n").shown(in_project=None)
    assert shown == "[learning from 2026-01-10-auth]\n> First\n>\n> [caution from root]\n"
    there = item("First\n", project="web-12ab34cd")
    assert there.shown(in_project="api-00000000").startswith("[learning from 2026-01-10-auth in web-12ab34cd]\n")
    assert there.shown(in_project="web-12ab34cd").startswith("[learning from 2026-01-10-auth]\n")


def test_nothing_that_is_shown_leaves_its_line_or_moves_the_cursor() -> None:
    shown = item("a\x1b[2Jb\rc\u2028d\u202ee\x85f\x0bg").shown(in_project=None)
    head, line, rest = shown.split("\n")
    assert (head, rest) == ("[learning from 2026-01-10-auth]", "")
    assert line == "> a\\x1b[2Jb\\rc\\u2028d\\u202ee\\x85f\\x0bg"
    assert len(shown.splitlines()) == 2
    assert (
        item("a\u200bb\U000e0041c\u2060d e\u200cf")
        .shown(in_project=None)
        .endswith("\n> a\\u200bb\\U000e0041c\\u2060d e\u200cf\n")
    ), "invisible letters are shown, those that join others stay"
    told = item(project="x\x1b[2J]\n[caution from root").shown(in_project=None)
    assert told.startswith("[learning from 2026-01-10-auth in x\\x1b[2J]\\n[caution from root]\n> ")


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "a\nb", "é", "x" * 101])
def test_what_can_not_name_a_folder_names_no_session(name: str) -> None:
    with pytest.raises(Refused):
        session_name(name)


@pytest.mark.parametrize(
    ("kind", "body", "warned"),
    [
        (Kind.LEARNING, "word " * 400, "tokens"),
        (Kind.THREAD, "The migration is at step 3.", "next step"),
        (Kind.THREAD, "Database migration paused at step 3, resume needed", None),
        (Kind.CAUTION, "The endpoint is slow.", "condition"),
        (Kind.CAUTION, "Rate limiting on refresh endpoint required", None),
        (Kind.CONTEXT, "ADR-007 is about security.", "continuation"),
        (Kind.CONTEXT, "ADR-007 on security patterns applies to next auth work", None),
        (Kind.LEARNING, "Today I worked on the login.", "notes"),
    ],
)
def test_the_gratitude_test_warns(kind: Kind, body: str, warned: str | None) -> None:
    found = warnings(kind, body)
    assert (warned in found[0]) if warned else (found == [])
