"""How an inbox gathers: rules 2, 3 and 4 where single sources have policies of their own."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client

from apps.core.errors import Conflict, NotFound
from apps.digests import selectors, services
from apps.digests.models import Inbox, SourcePolicy, Thread
from apps.digests.services import PolicyChange
from apps.digests.services.policies import MOST_SOURCE_POLICIES
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from tests.digests.makers import ack_through, make_draft, pass_time, post, post_grouped, read, unsound
from tests.digests.test_database import statements
from tests.factories import T0, make_caller, make_token


@pytest.fixture
def sound(as_kee: Caller) -> Iterator[Caller]:
    yield as_kee
    assert unsound() == {}


def set_policy(owner: Caller, source: str | None = None, **change: Any) -> None:
    services.set_policy(
        tenant_id=owner.tenant_id,
        principal_id=owner.principal_id,
        change=PolicyChange(**change),
        source_system=source,
        now=T0,
    )


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


def test_disabled_source_makes_items(sound: Caller) -> None:
    set_policy(sound, "github", enabled=False)
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    assert shown(sound) == [("item", "github", None)]
    assert read(sound).pending == 1


def test_source_may_be_enabled_where_the_inbox_is_not(sound: Caller) -> None:
    set_policy(sound, enabled=False)
    set_policy(sound, "github", enabled=True)
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    assert shown(sound) == [("item", "gitlab", None)]
    set_policy(sound, enabled=False)  # again: what is gathered goes on waiting
    assert read(sound).pending == 1


def test_source_window_overrides_the_inbox(sound: Caller) -> None:
    pass_time(0)
    set_policy(sound, "github", window=timedelta(seconds=300))
    set_policy(sound, max_items=3)
    post_grouped(sound, "slow", source="github")
    post_grouped(sound, "usual", source="gitlab")
    assert (due_in("slow"), due_in("usual")) == (300, 30)
    for _ in range(2):
        post_grouped(sound, "slow", source="github")
    assert shown(sound) == [("digest_snapshot", "github", "size")]


def test_source_size_age_and_window_flush_its_threads(sound: Caller) -> None:
    set_policy(sound, "github", max_items=2, max_thread_age=timedelta(minutes=1), window=timedelta(minutes=5))
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    post_grouped(sound, source="github")
    assert shown(sound) == [("digest_snapshot", "github", "size")]
    pass_time(31)
    services.flush_due()
    assert shown(sound)[1:] == [("digest_snapshot", "gitlab", "window")]
    post_grouped(sound, source="github")
    pass_time(60)
    post_grouped(sound, source="github")
    assert shown(sound)[-1] == ("digest_snapshot", "github", "rollover")
    assert Thread.objects.filter(source_system="github").count() == 2


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
    assert list(SourcePolicy.objects.values_list("source_system", flat=True)) == ["gitlab"]
    remove(sound, "gitlab")
    assert not Inbox.objects.get().has_source_policies
    pass_time(0)
    post_grouped(sound, "new", source="github")
    assert due_in("new") == 30


def test_every_reason_is_stored(sound: Caller) -> None:
    set_policy(sound, max_items=2)
    for source in ("by size", "by size"):
        post_grouped(sound, source=source)
    post_grouped(sound, source="at once", flush_class="immediate")
    post_grouped(sound, source="broken")
    post_grouped(sound, source="broken", break_thread=True)
    pass_time(31)
    services.flush_due()
    older = next(one for one in read(sound).entries if one.source_systems == ["by size"])
    post_grouped(sound, source="by size", flush_class="immediate")
    ack_through(sound, older.token)
    post_grouped(sound, source="off")
    set_policy(sound, enabled=False)
    reasons = {one.flush_reason for one in selectors.history(sound.principal_id).entries}
    assert reasons == {"size", "immediate", "rollover", "window", "narrow", "lifecycle"}


def test_removing_what_is_not_there_changes_nothing(sound: Caller, tenant: Tenant) -> None:
    hexy = make_caller(tenant, "Hexy")
    set_policy(sound, "github", enabled=False)
    for owner, source in ((sound, "gitlab"), (hexy, "github")):
        with pytest.raises(NotFound):
            remove(owner, source)
    assert SourcePolicy.objects.count() == 1


def test_an_inbox_has_room_for_so_many_policies(sound: Caller) -> None:
    set_policy(sound, "github", max_items=2)
    inbox = Inbox.objects.get()
    SourcePolicy.objects.bulk_create(
        SourcePolicy(tenant_id=sound.tenant_id, inbox=inbox, source_system=f"s{number}")
        for number in range(MOST_SOURCE_POLICIES - 1)
    )
    with pytest.raises(Conflict):
        set_policy(sound, "one more", max_items=2)
    assert SourcePolicy.objects.count() == MOST_SOURCE_POLICIES
    set_policy(sound, "github", max_items=3)
    assert selectors.policies(sound.principal_id).of("github").max_items == 3


@pytest.mark.parametrize("change", [{"max_items": 0}, {"max_items": 501}, {"window": timedelta(seconds=-1)}])
def test_the_database_refuses_an_impossible_policy(sound: Caller, change: dict[str, Any]) -> None:
    for source in (None, "github"):
        with pytest.raises(IntegrityError, match="possible"), transaction.atomic():
            set_policy(sound, source, **change)
    assert not SourcePolicy.objects.exists()


def test_post_reads_source_policies_only_if_there_are_any(sound: Caller) -> None:
    post_grouped(sound)
    post(sound)
    with statements(4):  # fact, lock, thread, place
        post_grouped(sound)
    set_policy(sound, "gitlab", enabled=False)
    with statements(5):  # fact, lock, policy, thread, place
        post_grouped(sound)
    with statements(1):  # fact and place: what is not gathered asks for no policy
        post(sound)


def test_batch_follows_the_policy_of_each_inbox_and_source(sound: Caller, tenant: Tenant) -> None:
    hexy = make_caller(tenant, "Hexy")
    set_policy(sound, "github", enabled=False)
    group = services.Group(resource_ref="pr:1", event_family="ci")
    drafts = [
        make_draft(owner, source=source, group=group) for owner in (sound, hexy) for source in ("github", "gitlab")
    ]
    services.post_many(poster=services.Poster.of(sound), drafts=drafts, now=T0)
    assert (shown(sound), read(sound).pending) == ([("item", "github", None)], 1)
    assert (shown(hexy), read(hexy).pending) == ([], 2)


def asking(tenant: Tenant) -> Callable[..., tuple[int, dict[str, Any]]]:
    kee = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}

    def ask(method: str, path: str = "", body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        client = Client(raise_request_exception=False)
        call = getattr(client, method.lower())
        more = {"data": body, "content_type": "application/json"} if body is not None else {}
        answer = call(f"/api/v1/inbox/policy{path}", headers=kee, **more)
        return answer.status_code, answer.json()

    return ask


DEFAULT = {"enabled": True, "window_ms": 30_000, "max_items": 20, "max_thread_age_ms": 86_400_000}


def test_source_policy_over_http(tenant: Tenant) -> None:
    ask = asking(tenant)
    own = DEFAULT | {"window_ms": 60_000}
    listed = [own | {"source_system": "github"}]
    expected = own | {"source_system": "github", "sources": listed}
    assert ask("PUT", body={"source_system": "github", "window_ms": 60_000}) == (200, expected)
    assert ask("GET", "?source_system=github") == (200, expected)
    assert ask("GET", "?source_system=gitlab") == (200, DEFAULT | {"source_system": "gitlab", "sources": listed})
    assert ask("GET") == (200, DEFAULT | {"source_system": None, "sources": listed})
    removed = DEFAULT | {"source_system": "github", "sources": []}
    assert ask("DELETE", "?source_system=github") == (200, removed)
    status, refusal = ask("DELETE", "?source_system=github")
    assert (status, refusal["code"]) == (404, "unknown_policy")
