"""Handoffs are found by index, however many there were."""

from datetime import timedelta

import pytest
from django.db import connection

from apps.handoff import sql
from apps.handoff.models import Handoff
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests import ground
from tests.factories import T0


@pytest.fixture
def many(kee: Caller) -> Caller:
    """An agent with 4,000 handoffs of forty projects, nearly all inherited, by a session for every ten."""
    rows = [
        Handoff(
            tenant_id=kee.tenant_id,
            recipient_id=kee.principal_id,
            receipt_id=f"R.{number}",
            project=f"project-{number % 40}",
            kind="learning",
            priority="low",
            from_session="s",
            left_at=T0,
            inherited_by=f"session-{number // 10}" if number % 100 else None,
            inherited_at=T0 + timedelta(minutes=number) if number % 100 else None,
        )
        for number in range(4000)
    ]
    with acting_as(kee):
        Handoff.objects.bulk_create(rows)
    ground.analyzed("handoff_handoff")
    return kee


def test_what_a_session_inherited_is_found_by_its_index(many: Caller) -> None:
    with acting_as(many):
        asked = Handoff.objects.filter(
            recipient_id=many.principal_id, inherited_by="session-7", inherited_at__isnull=False
        )
        assert (asked.count(), "handoff_handoff_of_session" in asked.explain()) == (10, True)


def test_a_projects_list_is_found_by_its_index(many: Caller) -> None:
    with acting_as(many):
        asked = Handoff.objects.filter(tenant_id=many.tenant_id, project="project-7").order_by("-pk")
        assert "handoff_handoff_of_project" in asked.explain()


def test_what_is_old_enough_is_found_by_its_index(many: Caller) -> None:
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(f"explain {sql.TIDY}", {"before": T0 + timedelta(minutes=20), "limit": 100})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "handoff_handoff_by_age" in plan
    assert "Seq Scan" not in plan
