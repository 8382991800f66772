"""The policies of an inbox and of single sources, and the replay of the past under another policy."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from itertools import count

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.errors import Conflict
from apps.core.sql import database_now
from apps.digests import selectors, services
from apps.digests.grouping import Policy
from apps.digests.models import Entry, FlushReason, Inbox, Thread
from apps.digests.services import MOST_SOURCE_POLICIES
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.services import Group, Poster
from tests.digests.makers import make_draft, post, post_grouped, read, set_policy, set_source, unsound
from tests.digests.test_database import statements
from tests.factories import T0, ask, at, make_caller, make_token, pass_time


@pytest.fixture
def sound(as_kee: Caller) -> Iterator[Caller]:
    yield as_kee
    assert unsound() == {}


def remove(owner: Caller, source: str) -> None:
    services.remove_source_policy(principal_id=owner.principal_id, source_system=source, now=T0)


def shown(owner: Caller) -> list[tuple[str, str, str | None]]:
    return [(one.kind, one.source_systems[0], one.flush_reason) for one in read(owner).entries]


def due_in(resource: str) -> float:
    due = Thread.objects.get(resource_ref=resource).flush_due_at
    assert due is not None
    pass_time(0)
    with connection.cursor() as cursor:
        cursor.execute("select extract(epoch from %s - gatehouse_now())", [due])
        seconds: float = float(cursor.fetchone()[0])
    return seconds


def test_disabling_a_source_flushes_its_buffers_only(sound: Caller) -> None:
    for source in ("github", "gitlab"):
        post_grouped(sound, source=source)
        post_grouped(sound, "pr:2", source=source)
    set_policy(sound, "github", enabled=False)
    assert shown(sound) == [("digest_snapshot", "github", "lifecycle")] * 2
    assert read(sound).pending == 2
    post_grouped(sound, source="github")
    assert shown(sound)[-1] == ("item", "github", None)


def test_removing_a_source_policy_flushes_the_source(sound: Caller) -> None:
    set_policy(sound, "github", window=timedelta(hours=1))
    set_policy(sound, "gitlab", window=timedelta(hours=1))
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    remove(sound, "github")
    assert shown(sound) == [("digest_snapshot", "github", "lifecycle")]
    assert Inbox.objects.get().source_policies == {"gitlab": {"window_ms": 3_600_000}}
    pass_time(0)
    post_grouped(sound, "new", source="github")
    assert due_in("new") == 30


def test_an_inbox_has_room_for_so_many_policies(sound: Caller) -> None:
    set_policy(sound, "github", max_items=2)
    own = {f"s{number}": {"max_items": 2} for number in range(MOST_SOURCE_POLICIES - 1)}
    Inbox.objects.update(source_policies=own | {"github": {"max_items": 2}})
    with pytest.raises(Conflict):
        set_policy(sound, "one more", max_items=2)
    assert len(Inbox.objects.get().source_policies) == MOST_SOURCE_POLICIES
    set_policy(sound, "github", max_items=3)
    assert selectors.policies(sound.principal_id).of("github").max_items == 3


def test_policies_of_sources_come_with_the_lock(sound: Caller) -> None:
    post_grouped(sound)
    set_policy(sound, "gitlab", enabled=False)
    with statements(4):  # fact, lock, thread, place
        post_grouped(sound)


def test_batch_follows_the_policy_of_each_inbox_and_source(sound: Caller, hexy: Caller) -> None:
    set_policy(sound, "github", enabled=False)
    group = Group(resource_ref="pr:1", event_family="ci")
    drafts = [
        make_draft(owner, source=source, group=group) for owner in (sound, hexy) for source in ("github", "gitlab")
    ]
    services.post_many(poster=Poster.of(sound), drafts=drafts, now=T0)
    assert (shown(sound), read(sound).pending) == ([("item", "github", None)], 1)
    assert (shown(hexy), read(hexy).pending) == ([], 2)


DEFAULT = {"enabled": True, "window_ms": 30_000, "max_items": 20, "max_thread_age_ms": 86_400_000}


def test_source_policy_over_http(tenant: Tenant) -> None:
    kee = make_token(tenant, "Kee")
    own = DEFAULT | {"window_ms": 60_000}
    listed = [own | {"source_system": "github"}]
    expected = own | {"source_system": "github", "sources": listed}
    assert ask("PUT", "inbox/policy", kee, {"source_system": "github", "window_ms": 60_000}) == (200, expected)
    assert ask("GET", "inbox/policy?source_system=github", kee) == (200, expected)
    assert ask("GET", "inbox/policy?source_system=gitlab", kee) == (
        200,
        DEFAULT | {"source_system": "gitlab", "sources": listed},
    )
    assert ask("GET", "inbox/policy", kee) == (200, DEFAULT | {"source_system": None, "sources": listed})
    removed = DEFAULT | {"source_system": "github", "sources": []}
    assert ask("DELETE", "inbox/policy?source_system=github", kee) == (200, removed)
    status, refusal = ask("DELETE", "inbox/policy?source_system=github", kee)
    assert (status, refusal["code"]) == (404, "unknown_policy")


def policy(*, window: float = 30, max_items: int = 20, age: float = 86_400, enabled: bool = True) -> Policy:
    return Policy(
        enabled=enabled,
        window=timedelta(seconds=window),
        max_items=max_items,
        max_thread_age=timedelta(seconds=age),
    )


_names = count(1)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 5, 10, 20, 45]),
        st.sampled_from(["a", "b", None]),
        st.sampled_from(["github", "gitlab"]),
        st.sampled_from(["", "", "", "immediate", "break"]),
    ),
    min_size=1,
    max_size=25,
)
POLICIES = st.builds(
    policy,
    window=st.sampled_from([0, 1, 10, 30]),
    max_items=st.sampled_from([1, 2, 3, 20]),
    age=st.sampled_from([1, 30, 60, 86_400]),
    enabled=st.sampled_from([True, True, True, False]),
)


@settings(
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS, default=POLICIES, of_github=st.none() | POLICIES)
def test_replay_counts_what_the_inbox_makes(
    as_kee: Caller,
    tenant: Tenant,
    events: list[tuple[int, str | None, str, str]],
    default: Policy,
    of_github: Policy | None,
) -> None:
    reader = make_caller(tenant, f"Reader {next(_names)}")
    set_policy(reader, **asdict(default))
    if of_github is not None:
        set_policy(reader, "github", **asdict(of_github))
    moment = T0
    for pause, resource, source, what in events:
        moment += timedelta(seconds=pause)
        at(moment)
        services.flush_due()
        if resource is None:
            post(reader, source=source, poster=as_kee, now=moment)
        else:
            flush_class = "immediate" if what == "immediate" else "normal"
            breaks = what == "break"
            post_grouped(
                reader, resource, source=source, poster=as_kee, now=moment, flush_class=flush_class, break_thread=breaks
            )
    at(moment + timedelta(days=1))
    services.flush_due()

    made = Entry.objects.filter(inbox__principal_id=reader.principal_id).exclude(flush_reason=FlushReason.NARROW)
    replayed = selectors.replay(reader.principal_id, since=T0)
    assert (replayed.receipts, replayed.entries_then) == (len(events), made.count())
    if of_github is None and default.enabled:
        assert replayed.entries_now == replayed.entries_then


def test_replay_compares_held_policies_with_the_given_one(as_kee: Caller) -> None:
    for number in range(10):
        post_grouped(as_kee, now=T0 + timedelta(seconds=20 * number))
    post(as_kee, now=T0 + timedelta(seconds=300))
    longer = selectors.replay(as_kee.principal_id, since=T0, window_ms=300_000)
    assert (longer.receipts, longer.grouped, longer.entries_then, longer.entries_now) == (11, 10, 6, 2)
    assert longer.wakes_saved == 4
    smaller = selectors.replay(as_kee.principal_id, since=T0, window_ms=300_000, max_items=1)
    assert (smaller.entries_now, smaller.wakes_saved) == (11, -5)
    later = selectors.replay(as_kee.principal_id, since=T0 + timedelta(seconds=100))
    assert later.receipts == 6


def test_replay_groups_by_hooks_and_keys(as_kee: Caller) -> None:
    for name in ("build", "lint", "docs"):
        payload = {"check_run": {"name": name, "pull_requests": [{"number": 1}]}}
        post(as_kee, source="github_repo_ci", event_type="check_run", metadata=payload)
    for version in range(3):
        post(as_kee, dedupe_key=f"github:ci:pr-1:v{version}")
    before = selectors.replay(as_kee.principal_id, since=T0)
    assert (before.receipts, before.grouped, before.entries_now) == (6, 3, 4)
    set_source(as_kee, by_key=True)
    after = selectors.replay(as_kee.principal_id, since=T0)
    assert (after.receipts, after.grouped, after.entries_now) == (6, 6, 2)


def test_replay_is_truncated_to_the_newest_receipts(as_kee: Caller) -> None:
    for number in range(6):
        post(as_kee, now=T0 + timedelta(seconds=number))
    cut = selectors.replay(as_kee.principal_id, since=T0, limit=4)
    assert (cut.receipts, cut.truncated, cut.since) == (4, True, T0 + timedelta(seconds=2))
    whole = selectors.replay(as_kee.principal_id, since=T0, limit=6)
    assert (whole.receipts, whole.truncated, whole.since) == (6, False, T0)


def test_replay_is_of_the_reader_and_changes_nothing(tenant: Tenant) -> None:
    kee, hexy = make_caller(tenant), make_caller(tenant, "Hexy")
    with acting_as(kee):
        pass_time(0)
        for _ in range(3):
            post_grouped(kee, now=database_now())
        post(hexy, poster=kee, now=database_now())
    status, replayed = ask(
        "POST", "inbox/policy/replay", make_token(tenant, "Kee"), {"since": "2026-01-01T00:00:00Z", "window_ms": 0}
    )
    assert (status, replayed) == (
        200,
        {
            "receipts": 3,
            "grouped": 3,
            "entries_then": 1,
            "entries_now": 3,
            "wakes_saved": -2,
            "since": "2026-01-01T00:00:00Z",
            "truncated": False,
        },
    )
    assert ask("POST", "inbox/policy/replay", make_token(tenant, "Kee"), {"window_ms": 0})[1]["receipts"] == 3
    with acting_as(kee):
        assert not Entry.objects.filter(inbox__principal_id=kee.principal_id).exists()
