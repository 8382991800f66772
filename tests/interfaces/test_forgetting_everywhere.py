"""A subject is named in every registered place where words can stand, and is forgotten: no word is left but in names.

The registry of these places is the list of what has to be planted. Where one finds nothing to erase, this module or
:mod:`tests.interfaces.planting` lacks it.
"""

from typing import Final

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection

from apps.core import erasure
from apps.core.erasure import Wanted
from apps.core.sql import database_now
from apps.executions.models import BegunJob
from apps.handoff import services as handoffs
from apps.handoff.items import Kind, Priority
from apps.handoff.services import Note
from apps.memory import services as memory
from apps.plans import services as plans
from apps.plans.history import Past
from apps.plans.services import PlanRequest
from apps.principals.models import Operator, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.workers.models import Place, WorkerEvent
from tests.digests.makers import post
from tests.factories import T0
from tests.interfaces.planting import NOWHERE, plant_everything
from tests.memory.subjects import ALICE
from tests.memory.test_forgetting import CANARY, DAY, forget, traces
from tests.tasks import making
from tests.workers.factories import add_source, enroll, make_key

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("own_artifacts")]

SAID: Final = f"{ALICE}={CANARY}"
"""What can stand in names, too."""
# What others answer, and what no door takes such a text for: a row that is there already is told it by hand.
BY_HAND: Final = {
    "activation_dispatch": "result = %(said)s",
    "plans_planstep": "provenance = jsonb_build_object('said', %(said)s)",
    "receipts_letter": "said = %(said)s",
    "workers_offer": "name = %(said)s",
}
# Names, of which nothing can be taken: they are told instead.
NAMES: Final = {
    "activation_dispatch",
    "activation_target",
    "digests_source",
    "handoff_handoff",
    "memory_memorypolicy",
    "memory_promotionpolicy",
    "plans_delegate",
    "principals_principal",
    "principals_token",
    "receipts of tasks",
    "receipts_receipt",
    "receipts_receiptkey",
    "receipts_remotetarget",
    "receipts_residence",
    "receipts_unmatchedcloser",
    "tasks_hottask",
    "tasks_idempotencykey",
    "tasks_queue",
    "tasks_task",
    "tasks_tasktype",
    "workers_offer",
    "workers_place",
    "workers_signingkey",
    "workers_toolversion",
    "workers_worker",
    "workers_workerevent",
    "workers_workersource",
}


# What names are written in beside these places: see NO_WORDS in :mod:`tests.memory.test_forgetting`.
NAMED_AGAIN: Final = {"digests_sourcepolicy", "receipts_letter"}
# Of rows that lose what else they say: all but the names.
BUT_NAMES: Final = {
    "receipts_letter": "to_jsonb(t) - 'recipient_name'",
    "receipts_receipt": "to_jsonb(t) - 'receipt_id' - 'pairs_with_ref'",
    "tasks_task": "to_jsonb(t) - 'concurrency_key'",
}


def plant_the_rest(tenant: Tenant, kee: Caller) -> None:
    """What the operations can do without, beside :func:`plant_everything`."""
    with acting_as(kee):
        for days, description in enumerate((SAID, f"{SAID} again")):
            memory.store_concept(author=kee, name="Alice", description=description, now=T0 + days * DAY)
        post(kee, receipt_id=SAID, pairs_with=f"{SAID}-earlier", title=SAID)
        note = Note(from_session=SAID, kind=Kind.CAUTION, priority=Priority.HIGH, body=SAID, project=SAID)
        handoffs.leave(author=kee, recipient_id=kee.principal_id, note=note, now=T0)
        source = add_source(kee, NOWHERE, name=SAID)
        Place.objects.create(tenant_id=kee.tenant_id, source=source, key=SAID, stated={}, named_at=T0, next_at=T0)
        enroll(kee, make_key(SAID))
        request = PlanRequest(intent=f"Analyze the repository at /{SAID}")
        plans.create_plan(caller=kee, request=request, now=database_now())
        plans.take_over_history(tenant_id=kee.tenant_id, plans=[Past(request=SAID, tools=("uid",))], now=T0)
        event = WorkerEvent.objects.latest("pk")
        event.pk, event.detail = None, SAID
        WorkerEvent.objects.bulk_create([event])
        BegunJob.objects.create(
            tenant_id=kee.tenant_id, worker_id="w", cancel_tool="c", job_id=SAID, began_at=T0, next_at=database_now()
        )
    making.queue(kee, "survey", {"said": SAID}, concurrency_key=SAID, idempotency_key=SAID)
    plans.learn(tenant_id=kee.tenant_id, now=T0)
    LogEntry.objects.create(
        user=Operator.objects.create_user(username="olga", password="x", is_staff=True),  # of nobody
        content_type=ContentType.objects.get_for_model(tenant),
        object_id=str(tenant.pk),
        object_repr=SAID,
        action_flag=CHANGE,
    )
    with acting_as_system("test"), erasure.redacting(), connection.cursor() as cursor:
        for table, told in BY_HAND.items():
            cursor.execute(f"update {table} set {told}", {"said": SAID})
            assert cursor.rowcount, table


def tables_of(places: set[str]) -> set[str]:
    """Where places are."""
    return {str(getattr(place, "table", place.name)) for place in erasure.all_places() if place.name in places}


def told_beside_names() -> dict[str, int]:
    """In how many rows that keep names something else is told."""
    found: dict[str, int] = {}
    with acting_as_system("test"), connection.cursor() as cursor:
        for table, told in BUT_NAMES.items():
            cursor.execute(f"select count(*) from {table} t where strpos(({told})::text, %s) > 0", [CANARY])
            (found[table],) = cursor.fetchone()
    return found


def test_of_a_subject_that_is_named_in_every_place_only_names_are_left_and_they_are_told(
    transactional_db: None,
) -> None:
    planted = plant_everything("acme", SAID)
    plant_the_rest(planted.tenant, planted.kee)

    with acting_as_system("test"):
        before = erasure.remaining(Wanted(tenant_id=planted.tenant.pk, reference=ALICE))

    assert 0 not in told_beside_names().values()

    done = forget(planted.kee)

    # What waits for others to be erased is counted by nobody before.
    assert {place.name for place in erasure.all_places()} - (before.keys() | done.erased.keys()) == set()
    assert done.remaining.keys() == NAMES
    assert traces(CANARY).keys() == tables_of(NAMES) | NAMED_AGAIN
    assert set(told_beside_names().values()) == {0}
