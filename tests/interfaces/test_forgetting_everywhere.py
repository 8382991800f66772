"""A subject's id in every column of the model catalogue: it is erased, or stays as a name and is counted."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import IntegrityError, InternalError, connection, models, transaction
from django.db.utils import DataError

from apps.digests import services as digests
from apps.memory import services as memory
from apps.memory.models import SearchTerm, TermFrequency
from apps.plans.models import LearnedModel
from apps.principals.models import TenantModel
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks.models import BulkAction
from apps.workers.models import SourceEntry
from tests.digests.makers import post
from tests.factories import T0, as_owner
from tests.interfaces.planting import NOWHERE, plant_everything
from tests.memory.subjects import ALICE, DAY, add
from tests.workers.factories import add_source, enroll, make_key

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("own_artifacts")]

# Tables whose rows stay, with whatever ids clients put there: what workers and operators say of themselves.
STAYING_TABLES: Final = {
    "delivery_remoteroute", "delivery_target", "digests_source", "digests_sourcehour",
    "memory_promotionpolicy", "principals_principal", "principals_token",
    "receipts_receiptkey", "task_live", "tasks_idempotencykey", "tasks_queue", "tasks_tasktype", "workers_offer",
    "workers_sourceentry", "workers_signingkey", "workers_toolversion", "workers_worker", "workers_workerevent",
    "workers_workersource",
    "tasks_bulkaction",  # what an operator wrote
    "tasks_artifact",  # another task's result has the same bytes
}  # fmt: skip
# Columns that stay in rows that lose the rest: names and ids by which rows are found. A new column is either erased with
# its row (`erasure.py` of its app) or named here.
STAYING: Final = {
    "delivery_delivery": {"failure", "recipient", "reference", "remote_id"},
    "digests_entry": {"delivery_handle", "source_system"},
    "digests_inbox": {"source_policies"},
    "digests_thread": {"event_family", "source_system"},
    "executions_execution": {"plan_id", "plan_receipt_id"},
    "executions_executionstep": {"depends_on", "receipt_id", "step_id"},
    "memory_subject": {"display_name"},
    "plans_plan": {"plan_id", "receipt_id"},
    "receipts_receipt": {
        "caused_by_ref",
        "event_family",
        "event_type",
        "pairs_with_ref",
        "receipt_id",
        "source_system",
    },
    "tasks_schedule": {"name", "timezone"},
    "tasks_task": {"concurrency_key", "receipt_id"},
    "task_history": {"checksum", "media_type", "receipt_id", "result_channel"},
}

Field = Any  # models.Field takes no parameters at run time


def columns() -> Iterator[tuple[type[models.Model], Field, Any]]:
    """Every column of a tenant's table that can hold an id, and such a value. The search index holds words alone."""
    for model in apps.get_models():
        if issubclass(model, TenantModel) and model not in (TermFrequency, SearchTerm):
            for field in model._meta.concrete_fields:
                if field.name == "share_with":  # principals, not subjects
                    continue
                value: Any = ALICE
                if isinstance(field, ArrayField) and isinstance(field.base_field, models.CharField):
                    value = [ALICE]
                elif isinstance(field, models.JSONField):
                    value = {"about": [ALICE]}
                elif field.choices or not isinstance(field, models.CharField | models.TextField):
                    continue
                yield model, field, value


def plant_the_rest(kee: Caller) -> None:
    """A row in each table that :func:`plant_everything` leaves empty."""
    with acting_as(kee):
        for days, text in enumerate(("one", "two")):
            memory.store_concept(author=kee, name="Alice", description=text, now=T0 + days * DAY)
        add(kee, "USER:bob")
        post(kee, pairs_with="unknown")
        digests.count_posts(kee.tenant_id, {"ci": 1}, T0)
        source = add_source(kee, NOWHERE)
        SourceEntry.objects.create(
            tenant_id=kee.tenant_id, source=source, key="key", stated={}, named_at=T0, next_at=T0
        )
        enroll(kee, make_key("key"))
        BulkAction.objects.create(tenant_id=kee.tenant_id, verb="retry", operator="o", task_ids=[1], created_at=T0)
        LearnedModel.objects.create(tenant_id=kee.tenant_id, learned_from=1, body=b"")


def write_everywhere(tenant: int) -> None:
    """Put the id into each column of the newest row of each table, unless a constraint allows no such value there."""
    with transaction.atomic(), as_owner() as cursor:
        for model, field, value in columns():
            table, pk = model._meta.db_table, model._meta.pk.column
            cursor.execute(f"select max({pk}) from {table} where tenant_id = %s", [tenant])
            (row,) = cursor.fetchone()
            assert row is not None, f"plant_the_rest() leaves {table} empty"
            change = f"set {connection.ops.quote_name(field.column)} = %s where {pk} = %s"
            with suppress(IntegrityError, DataError, InternalError), transaction.atomic():
                cursor.execute(f"alter table {table} disable trigger user")
                cursor.execute(f"update {table} {change}", [field.get_db_prep_save(value, connection), row])
                cursor.execute(f"set constraints all immediate; alter table {table} enable trigger user")


def named(tenant: int) -> dict[str, set[str]]:
    """The columns in which the id stands, by table."""
    found: dict[str, set[str]] = {}
    with acting_as_system("test"), connection.cursor() as cursor:
        for model, field, _ in columns():
            table, column = model._meta.db_table, connection.ops.quote_name(field.column)
            cursor.execute(
                f"select 1 from {table} where tenant_id = %s and strpos(to_jsonb({column})::text, %s) > 0 limit 1",
                [tenant, f'"{ALICE}"'],
            )
            if cursor.fetchone():
                found.setdefault(table, set()).add(field.column)
    return found


def test_no_column_keeps_a_forgotten_id_but_those_declared(transactional_db: None) -> None:
    planted = plant_everything("acme", "zanzibar-quokka")
    plant_the_rest(planted.kee)
    tenant = planted.tenant.pk
    write_everywhere(tenant)

    with acting_as(planted.kee):
        erasure = memory.forget(author=planted.kee, subject_id=ALICE, now=T0)

    left = named(tenant)
    assert erasure.remaining.keys() == left.keys()
    assert left.keys() - STAYING.keys() == STAYING_TABLES
    assert {table: left[table] for table in STAYING} == STAYING
