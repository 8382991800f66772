"""Rule 15: what another policy would have made of the past, and that the inbox itself would have made just that."""

from datetime import datetime, timedelta
from itertools import count

import pytest
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.sql import database_now
from apps.digests import selectors, services
from apps.digests.grouping import Key
from apps.digests.models import Entry, FlushReason
from apps.digests.policy import Policy, Received, count_entries
from apps.digests.services import PolicyChange
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.digests import github_payloads as github
from tests.digests.makers import pass_time, post, post_grouped
from tests.digests.test_sources import set_source
from tests.factories import T0, make_caller, make_token


def policy(*, window: float = 30, max_items: int = 20, age: float = 86_400, enabled: bool = True) -> Policy:
    return Policy(
        enabled=enabled,
        window=timedelta(seconds=window),
        max_items=max_items,
        max_thread_age=timedelta(seconds=age),
    )


def received(*seconds: float, immediate: bool = False, breaks: bool = False) -> list[Received]:
    key = Key(
        source_system="github", resource_ref="pr:1", event_family="ci", is_immediate=immediate, breaks_thread=breaks
    )
    return [Received(at=T0 + timedelta(seconds=second), source_system="github", key=key) for second in seconds]


@pytest.mark.parametrize(
    ("came", "under", "expected"),
    [
        (received(), policy(), 0),
        (received(0, 1, 29.9), policy(), 1),
        (received(0, 30), policy(), 2),
        (received(0, 29, 31), policy(), 2),
        (received(0, 1, 2, 3, 4), policy(max_items=2), 3),
        (received(0, 1, 2), policy(window=0), 3),
        (received(0, 0, 0), policy(window=0), 3),
        (received(0, 1, 2, immediate=True), policy(), 3),
        (received(0, 1, 2, breaks=True), policy(), 3),
        (received(0, 50, 100), policy(window=1000, age=60), 2),
        (received(*range(1000)), policy(window=3600, max_items=501), 2),
        (received(0, 1, 2), policy(enabled=False), 3),
    ],
)
def test_count_entries(came: list[Received], under: Policy, expected: int) -> None:
    assert count_entries(came, lambda _: under) == expected


def set_clock(at: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [at.isoformat()])


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


def set_policy(owner: Caller, source: str | None, to: Policy) -> None:
    services.set_policy(
        tenant_id=owner.tenant_id,
        principal_id=owner.principal_id,
        change=PolicyChange(
            enabled=to.enabled, window=to.window, max_items=to.max_items, max_thread_age=to.max_thread_age
        ),
        source_system=source,
        now=T0,
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
    set_policy(reader, None, default)
    if of_github is not None:
        set_policy(reader, "github", of_github)
    at = T0
    for pause, resource, source, what in events:
        at += timedelta(seconds=pause)
        set_clock(at)
        services.flush_due()
        if resource is None:
            post(reader, source=source, poster=as_kee, now=at)
        else:
            flush_class = "immediate" if what == "immediate" else "normal"
            breaks = what == "break"
            post_grouped(
                reader, resource, source=source, poster=as_kee, now=at, flush_class=flush_class, break_thread=breaks
            )
    set_clock(at + timedelta(days=1))
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
    longer = selectors.replay(as_kee.principal_id, since=T0, window=timedelta(minutes=5))
    assert (longer.receipts, longer.grouped, longer.entries_then, longer.entries_now) == (11, 10, 6, 2)
    assert longer.wakes_saved == 4
    smaller = selectors.replay(as_kee.principal_id, since=T0, window=timedelta(minutes=5), max_items=1)
    assert (smaller.entries_now, smaller.wakes_saved) == (11, -5)
    later = selectors.replay(as_kee.principal_id, since=T0 + timedelta(seconds=100))
    assert later.receipts == 6


def test_replay_groups_by_hooks_and_keys(as_kee: Caller) -> None:
    for name in ("build", "lint", "docs"):
        post(as_kee, source="github_repo_ci", event_type="check_run", metadata=github.check_run(name, "success"))
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
    token = make_token(tenant, "Kee")
    answer = Client().post(
        "/api/v1/inbox/policy/replay",
        data={"since": "2026-01-01T00:00:00Z", "window_ms": 0},
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.json() == {
        "receipts": 3,
        "grouped": 3,
        "entries_then": 1,
        "entries_now": 3,
        "wakes_saved": -2,
        "since": "2026-01-01T00:00:00Z",
        "truncated": False,
    }
    recent = Client().post(
        "/api/v1/inbox/policy/replay",
        data={"window_ms": 0},
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert (recent.status_code, recent.json()["receipts"]) == (200, 3)
    with acting_as(kee):
        assert not Entry.objects.filter(inbox__principal_id=kee.principal_id).exists()
