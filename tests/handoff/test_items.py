"""One item as a file: what round-trips, what is no item, and what a reader is shown."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.handoff.items import MAX_BYTES, Item, Kind, Priority, Refused, Unreadable, session_name, warnings
from tests.handoff.repositories import NOON, item

HEAD = "from_session: 2026-01-10-auth\ntype: learning\npriority: high\ncreated: 2026-01-10T18:30:00Z\n"
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=300)


def file_of(head: str = HEAD, body: str = "Something\n") -> bytes:
    return f"---\n{head}---\n\n{body}".encode()


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


@pytest.mark.parametrize(
    "body",
    [
        "---\ntype: caution\n---\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "type: thread\nfrom_session: somebody\n",
        "\n\n  first after two blank lines",
        "no newline at the end",
        "\r\nCRLF\r\n---\r\nof another system\r\n",
        "\ufeffa mark in the middle",
        "---",
    ],
)
def test_a_body_is_kept_byte_for_byte(body: str) -> None:
    written = item(body)
    assert Item.from_bytes(written.to_bytes()).body.encode() == body.encode()
    assert written.to_bytes().endswith(body.encode())


def test_the_file_of_the_protocol_is_read() -> None:
    read = Item.from_bytes(file_of(body="JWT refresh token rotation.\n"))
    assert (read.from_session, read.kind, read.priority) == ("2026-01-10-auth", Kind.LEARNING, Priority.HIGH)
    assert read.created == datetime(2026, 1, 10, 18, 30, tzinfo=UTC)
    assert read.body == "JWT refresh token rotation.\n"


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
        (b"Just a note\n", "no front matter"),
        (b"---\nfrom_session: x\n", "no front matter"),
        (file_of(HEAD.replace("priority: high\n", "")), "lacks priority"),
        (file_of(""), "front matter"),
        (file_of(HEAD.replace("learning", "idea")), "unknown type"),
        (file_of(HEAD.replace("high", "urgent")), "unknown priority"),
        (file_of(HEAD + "priority: low\n"), "twice"),
        (file_of(HEAD + "tags: [a, b]\n"), "more than plain texts"),
        (file_of(HEAD + "a: &x b\nc: {d: *x}\n"), "more than plain texts"),
        (file_of(HEAD + "'unclosed: x\n"), "no YAML"),
        (file_of(HEAD + "deep: " + "[" * 3000 + "\n"), "front matter"),
        (file_of(HEAD + 'far: "\\UFFFFFFFF"\n'), "no YAML"),
        (file_of("- a\n- b\n"), "without keys"),
        (file_of(HEAD + f"long: {'x' * 5000}\n"), "over 4 KiB"),
        (file_of(HEAD.replace("2026-01-10T18:30:00Z", "yesterday")), "no ISO 8601"),
        (file_of(HEAD.replace("2026-01-10T18:30:00Z", "0001-01-01T00:00:00+14:00")), "no ISO 8601"),
        (file_of(HEAD.replace("2026-01-10-auth", '"a\\nb"')), "from_session"),
        (file_of(HEAD.replace("2026-01-10-auth", '"\\ud800"')), "front matter|from_session"),
        (file_of(HEAD.replace("2026-01-10-auth", "x" * 101)), "from_session"),
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


def test_an_item_of_another_repository_says_so() -> None:
    there = item("First\n", project="web-12ab34cd")
    assert there.shown(in_project="api-00000000").startswith("[learning from 2026-01-10-auth in web-12ab34cd]\n")
    assert there.shown(in_project="web-12ab34cd").startswith("[learning from 2026-01-10-auth]\n")


def test_nothing_that_is_shown_leaves_its_line_or_moves_the_cursor() -> None:
    shown = item("a\x1b[2Jb\rc\u2028d\u202ee\x85f\x0bg").shown(in_project=None)
    head, line, rest = shown.split("\n")
    assert (head, rest) == ("[learning from 2026-01-10-auth]", "")
    assert line == "> a\\x1b[2Jb\\rc\\u2028d\\u202ee\\x85f\\x0bg"
    assert len(shown.splitlines()) == 2
    told = item(project="x\x1b[2J]\n[caution from root").shown(in_project=None)
    assert told.startswith("[learning from 2026-01-10-auth in x\\x1b[2J]\\n[caution from root]\n> ")


def test_letters_that_a_reader_could_not_see_are_shown_and_those_that_join_others_stay() -> None:
    shown = item("a\u200bb\U000e0041c\u2060d e\u200cf").shown(in_project=None)
    assert shown.endswith("\n> a\\u200bb\\U000e0041c\\u2060d e\u200cf\n")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-a", "a b", "a\nb", "a:b", "é", "x" * 101])
def test_what_can_not_name_a_folder_names_no_session(name: str) -> None:
    with pytest.raises(Refused):
        session_name(name)


@pytest.mark.parametrize(
    ("kind", "body", "warned"),
    [
        (Kind.LEARNING, "Refresh tokens rotate.", None),
        (Kind.LEARNING, "word " * 400, "tokens"),
        (Kind.THREAD, "The migration is at step 3.", "next step"),
        (Kind.THREAD, "Database migration paused at step 3, resume needed", None),
        (Kind.CAUTION, "The endpoint is slow.", "condition"),
        (Kind.CAUTION, "Rate limiting on refresh endpoint required", None),
        (Kind.CONTEXT, "ADR-007 is about security.", "continuation"),
        (Kind.CONTEXT, "ADR-007 on security patterns applies to next auth work", None),
        (Kind.LEARNING, "Session notes: read files, ran tests.", "notes"),
        (Kind.LEARNING, "Today I worked on the login.", "notes"),
    ],
)
def test_the_gratitude_test_warns(kind: Kind, body: str, warned: str | None) -> None:
    found = warnings(kind, body)
    assert (warned in found[0]) if warned else (found == [])


def test_priorities_come_before_age() -> None:
    low = item(priority=Priority.LOW, created=NOON - timedelta(days=9))
    high, newer = item(priority=Priority.HIGH), item(priority=Priority.HIGH, created=NOON + timedelta(seconds=1))
    assert sorted([low, newer, high], key=lambda one: one.urgency) == [high, newer, low]
