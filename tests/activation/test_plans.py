"""What finding out whom to wake costs."""

from typing import Any

import pytest
from django.db import connection

from apps.activation import selectors, sql
from apps.digests import sql as inbox_sql
from apps.principals.tenancy import Caller, acting_as_system
from tests import ground
from tests.activation.making import make_target
from tests.digests.makers import post, post_grouped
from tests.digests.test_database import execute, rows_visited

MANY = 4000


@pytest.fixture
def crowd(as_kee: Caller) -> Caller:
    """Thousands of inboxes, each with an unacked digest that has superseded another, one in ten with a target."""
    post_grouped(as_kee, flush_class="immediate")
    target = make_target(as_kee, "https://agent.example/0").target
    execute("set local role none")
    execute(
        """
        with p as (
            insert into principals_principal (tenant_id, name, kind, created_at)
            select tenant_id, 'p' || n, 'ai', created_at from principals_principal, generate_series(1, %s) n
            where id = %s returning id, tenant_id, name
        ), i as (
            insert into digests_inbox (tenant_id, principal_id, last_seq, visible_unread, enabled, "window", max_items,
                                       max_thread_age)
            select p.tenant_id, p.id, 9, 1, true, interval '30 s', 20, interval '1 day' from p
            returning id, tenant_id, principal_id
        ), e as (
            insert into digests_entry (tenant_id, inbox_id, kind, sequence, source_system, receipt_ids, count, first_at,
                                       last_at, published_at, acked_at)
            select i.tenant_id, i.id, 'item', s, 'github', array[1], 1, now(), now(), now(),
                   case when s < 9 then now() end
            from i, generate_series(1, 9) s
        ), t as (
            insert into activation_target (tenant_id, principal_id, kind, url, notify_lease, min_unacked, with_titles,
                                           state, secret, created_at)
            select p.tenant_id, p.id, 'webhook', 'https://agent.example/', interval '10 min', 1, false, 'enabled', '',
                   now() from p where p.name like '%%0'
            returning id, tenant_id
        )
        insert into activation_dispatch (tenant_id, target_id, covered_seq, fence, attempts, next_at, sent, failed, wasted)
        select t.tenant_id, t.id, 9, 0, 0, now(), 0, 0, 0 from t
        """,
        [MANY, target.principal_id],
    )
    execute("set local role gatehouse_app")
    ground.analyzed(
        *("principals_principal", "digests_inbox", "digests_entry", "activation_target", "activation_dispatch")
    )
    return as_kee


def test_the_tick_looks_into_the_inboxes_of_targets_and_no_other(crowd: Caller) -> None:
    def tick() -> list[Any]:
        with acting_as_system("test"):
            return selectors.due()

    assert len(tick()) == 1
    targets = MANY // 10 + 1
    with acting_as_system("test"):
        assert rows_visited(selectors.due, "digests_inbox") < 2 * targets
        assert rows_visited(selectors.due, "digests_entry") <= 2
        assert rows_visited(selectors.due, "activation_dispatch") < 2 * targets


def test_an_inbox_is_looked_into_by_index_however_many_there_are(crowd: Caller) -> None:
    marks = {"tenants": [crowd.tenant_id], "principals": [crowd.principal_id], "marks": [0]}
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("explain " + inbox_sql.NEWS, marks)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "digests_inbox_once" in plan
    assert "digests_entry_live" in plan
    assert "digests_entry_superseded" in plan
    assert "Seq Scan" not in plan


def test_a_change_of_some_inboxes_asks_about_their_targets_only(crowd: Caller) -> None:
    post(crowd)

    def look() -> list[Any]:
        return selectors.due([(crowd.tenant_id, crowd.principal_id)])

    with acting_as_system("test"):
        assert len(look()) == 1
        assert rows_visited(look, "activation_target") <= 2
        assert rows_visited(look, "digests_inbox") == 1


def test_who_is_next_is_found_by_who_waits_and_who_is_being_called(crowd: Caller) -> None:
    given: dict[str, Any] = {"of_principal": 4, "of_tenant": 12, "taken_over_after": "30 s"}
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("explain " + sql.TAKE, given)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "activation_dispatch_waiting" in plan
    assert "activation_dispatch_busy" in plan
    assert "Seq Scan on activation_dispatch" not in plan
