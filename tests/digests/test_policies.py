"""How an inbox gathers: rules 2, 3 and 4 where single sources have policies of their own."""

import threading
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
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import ack_through, make_draft, pass_time, post, post_grouped, read, unsound
from tests.digests.test_database import statements
from tests.digests.test_races import until_they_wait
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


def test_rule_2_a_source_that_is_switched_off_is_items_and_others_are_gathered(sound: Caller) -> None:
    set_policy(sound, "github", enabled=False)
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    assert shown(sound) == [("item", "github", None)]
    assert read(sound).pending == 1


def test_rule_2_a_source_may_be_gathered_where_others_are_not(sound: Caller) -> None:
    set_policy(sound, enabled=False)
    set_policy(sound, "github", enabled=True)
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    assert shown(sound) == [("item", "gitlab", None)]
    set_policy(sound, enabled=False)  # again: what is gathered goes on waiting
    assert read(sound).pending == 1


def test_rule_3_a_source_has_a_window_of_its_own_and_the_rest_of_the_inboxs(sound: Caller) -> None:
    pass_time(0)
    set_policy(sound, "github", window=timedelta(seconds=300))
    set_policy(sound, max_items=3)
    post_grouped(sound, "slow", source="github")
    post_grouped(sound, "usual", source="gitlab")
    assert (due_in("slow"), due_in("usual")) == (300, 30)
    for _ in range(2):
        post_grouped(sound, "slow", source="github")
    assert shown(sound) == [("digest_snapshot", "github", "size")]


def test_rule_3_a_changed_source_policy_moves_no_due_time(sound: Caller) -> None:
    pass_time(0)
    post_grouped(sound)
    set_policy(sound, "github", window=timedelta(seconds=1))
    post_grouped(sound)
    assert due_in("pr:1") == 30
    post_grouped(sound, "pr:2")
    assert due_in("pr:2") == 1


def test_rule_4_size_age_and_window_of_a_source_flush_its_threads(sound: Caller) -> None:
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


def test_rule_4_switching_a_source_off_flushes_what_waits_of_it_only(sound: Caller) -> None:
    for source in ("github", "gitlab"):
        post_grouped(sound, source=source)
        post_grouped(sound, "pr:2", source=source)
    set_policy(sound, "github", enabled=False)
    assert shown(sound) == [("digest_snapshot", "github", "lifecycle")] * 2
    assert read(sound).pending == 2
    post_grouped(sound, source="github")
    assert shown(sound)[-1] == ("item", "github", None)


def test_rule_4_removing_a_sources_policy_flushes_what_waits_of_it_only(sound: Caller) -> None:
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


def test_rule_4_switching_all_off_spares_the_sources_that_stay_on(sound: Caller) -> None:
    set_policy(sound, "github", enabled=True)
    post_grouped(sound, source="github")
    post_grouped(sound, source="gitlab")
    set_policy(sound, enabled=False)
    assert shown(sound) == [("digest_snapshot", "gitlab", "lifecycle")]
    assert read(sound).pending == 1


def test_rule_4_every_reason_is_stored(sound: Caller) -> None:
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


def test_rule_6_each_snapshot_of_a_lifecycle_flush_has_a_sequence_of_its_own(sound: Caller) -> None:
    for number in range(5):
        post_grouped(sound, f"pr:{number}")
    set_policy(sound, "github", enabled=False)
    assert [one.sequence for one in read(sound).entries] == [1, 2, 3, 4, 5]


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


def test_a_post_asks_for_source_policies_only_where_there_are_any(sound: Caller) -> None:
    post_grouped(sound)
    post(sound)
    with statements(4):  # fact, lock, thread, place
        post_grouped(sound)
    set_policy(sound, "gitlab", enabled=False)
    with statements(5):  # fact, lock, policy, thread, place
        post_grouped(sound)
    with statements(1):  # fact and place: what is not gathered asks for no policy
        post(sound)


def test_a_batch_follows_the_policy_of_each_inbox_and_source(sound: Caller, tenant: Tenant) -> None:
    hexy = make_caller(tenant, "Hexy")
    set_policy(sound, "github", enabled=False)
    group = services.Group(resource_ref="pr:1", event_family="ci")
    drafts = [
        make_draft(owner, source=source, group=group) for owner in (sound, hexy) for source in ("github", "gitlab")
    ]
    services.post_many(poster=services.Poster.of(sound), drafts=drafts, now=T0)
    assert (shown(sound), read(sound).pending) == ([("item", "github", None)], 1)
    assert (shown(hexy), read(hexy).pending) == ([], 2)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("source", [None, "github"])
def test_rule_3_a_post_that_waited_for_the_lock_follows_the_policy_as_it_then_is(
    kee: Caller, source: str | None
) -> None:
    with acting_as(kee):
        post(kee)
    changed, posted = threading.Event(), threading.Event()

    def change() -> None:
        with acting_as(kee):
            set_policy(kee, source, enabled=False)
            changed.set()
            until_they_wait(1)

    def rival() -> None:
        changed.wait(20)
        with acting_as(kee):
            post_grouped(kee)
        posted.set()

    threads = [threading.Thread(target=closing(run)) for run in (change, rival)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert posted.is_set()
    with acting_as(kee):
        assert (len(read(kee).entries), read(kee).pending) == (2, 0)


def closing(run: Callable[[], None]) -> Callable[[], None]:
    def closed() -> None:
        try:
            run()
        finally:
            connection.close()

    return closed


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


def test_the_policy_of_a_source_is_set_read_and_removed_over_http(tenant: Tenant) -> None:
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


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", {"source_system": ""}),
        ("PUT", "", {"source_system": "x" * 51, "enabled": False}),
        ("PUT", "", {"source_system": "a\x00b", "enabled": False}),
        ("PUT", "", {"source_system": "github", "window_ms": -1}),
        ("PUT", "", {"source_system": "github", "window_ms": 86_400_001}),
        ("PUT", "", {"source_system": "github", "max_items": 501}),
        ("PUT", "", {"source_system": "github", "max_items": True}),
        ("PUT", "", {"source_system": "github", "max_thread_age_ms": 999}),
        ("PUT", "", {"source_system": "github", "enabled": "no"}),
        ("PUT", "", {"unheard_of": 1}),
        ("GET", "?source_system=", None),
        ("GET", "?nonsense=1", None),
        ("DELETE", "", None),
        ("DELETE", "?source_system=", None),
        ("POST", "/replay", {"since": "yesterday"}),
        ("POST", "/replay", {"since": "2026-01-03T20:15:00"}),
        ("POST", "/replay", {"since": "2026-01-03T20:15:00Z", "window_ms": -1}),
        ("POST", "/replay", {"since": "2026-01-03T20:15:00Z", "max_items": 0}),
    ],
)
def test_wrong_input_is_named_and_changes_nothing(
    tenant: Tenant, method: str, path: str, body: dict[str, Any] | None
) -> None:
    ask = asking(tenant)
    status, refusal = ask(method, path, body)
    assert status == 422, refusal
    with acting_as(make_caller(tenant)):
        assert not SourcePolicy.objects.exists()
        assert not Inbox.objects.exists()
