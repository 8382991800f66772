"""What is forgotten stands no longer in the history of what operators did."""

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import models

from apps.core import erasure
from apps.core.erasure import Wanted
from apps.principals.models import Operator, Tenant
from apps.principals.tenancy import acting_as_system
from apps.tasks.models import Schedule
from tests.factories import make_principal, make_tenant


@pytest.fixture
def olga(db: None) -> Operator:
    return Operator.objects.create_user(username="olga", password="x", is_staff=True)


def noted(operator: Operator, thing: models.Model, called: str, why: str = "") -> LogEntry:
    return LogEntry.objects.create(
        user=operator,
        content_type=ContentType.objects.get_for_model(thing),
        object_id=str(thing.pk),
        object_repr=called,
        action_flag=CHANGE,
        change_message=why,
    )


def test_of_what_was_done_in_a_tenant_the_words_are_taken_and_nothing_of_others(olga: Operator, tenant: Tenant) -> None:
    other = make_tenant("globex")
    kee, lee = make_principal(tenant, "Kee"), make_principal(other, "Lee")
    gone = Schedule(pk=999_999)
    taken = [
        noted(olga, kee, "Kee", "Disable: asked for by USER:alice"),
        noted(olga, kee, "c of USER:alice"),
        noted(olga, tenant, "USER:alice"),
        noted(olga, gone, "nightly for USER:alice"),
    ]
    kept = [
        noted(olga, lee, "Lee", "for USER:alice"),
        noted(olga, other, "USER:alice"),
        noted(olga, kee, "USER:alice.b"),
    ]
    wanted = Wanted(tenant_id=tenant.pk, reference="USER:alice")

    with acting_as_system("test"), erasure.redacting():
        erased = erasure.erase(wanted)
        assert (erased, erasure.remaining(wanted)) == ({"django_admin_log": len(taken)}, {})

    assert {
        (entry.object_repr, entry.change_message) for entry in LogEntry.objects.filter(pk__in=[e.pk for e in taken])
    } == {("", "")}
    assert [(one.object_repr, one.change_message) for one in kept] == list(
        LogEntry.objects.filter(pk__in=[one.pk for one in kept])
        .order_by("pk")
        .values_list("object_repr", "change_message")
    )
