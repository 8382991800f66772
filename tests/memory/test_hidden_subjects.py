"""Whom a subject is not shared with finds nothing that tells it from one that does not exist, not even work."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import BaseModel

from apps.core.operations import Operation, all_operations
from apps.memory import services
from apps.memory.selectors import memory_of
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller
from tests.memory.subjects import ALICE, add, refused, remember

NOBODY = "USER:nobody"
# What operations ask for besides a subject.
GIVEN: dict[str, Any] = {"fact": "t", "conversation_id": "c", "query": "t"}


def subject_of(declared: Operation) -> str | None:
    """The input by which an operation is told of a subject."""
    return next(
        (name for name in ("subject_id", "subject_ids", "subject") if name in declared.input.model_fields), None
    )


# All but the one that tells that an id is taken.
OPERATIONS = [one for one in all_operations() if one.app == "memory" and subject_of(one) and one.name != "add_subject"]


def test_the_operations_on_subjects_are_found() -> None:
    assert {"forget", "remember_fact", "record_session", "memory_recall", "get_memory_envelope", "update_subject"} <= {
        declared.name for declared in OPERATIONS
    }


def asked(declared: Operation, subject_id: str) -> BaseModel:
    needed = {name: GIVEN[name] for name in declared.input.model_fields if name in GIVEN}
    name = subject_of(declared)
    assert name is not None
    return declared.input.model_validate({**needed, name: [subject_id] if name == "subject_ids" else subject_id})


def statements(caller: Caller, declared: Operation, subject_id: str) -> int:
    with acting_as(caller):
        return cost(lambda: declared.run(caller, asked(declared, subject_id)), "unknown_subject")


def cost(act: Callable[[], Any], code: str) -> int:
    """How many statements it takes until something is refused."""
    with CaptureQueriesContext(connection) as captured, refused(code), transaction.atomic():
        act()
    return len(captured)


@pytest.mark.parametrize("closed_by", ["its own wish", "the tenant's"])
@pytest.mark.parametrize("declared", OPERATIONS, ids=lambda declared: declared.name)
def test_a_subject_that_is_not_shared_costs_as_many_statements_as_none(
    as_kee: Caller, tenant: Tenant, declared: Operation, closed_by: str
) -> None:
    if closed_by == "its own wish":
        add(as_kee, share_with=["Kee"])
    else:
        add(as_kee)
        services.set_memory_policy(author=as_kee, share_with=["Kee"], now=T0)
    lee = make_caller(tenant, "Lee")
    assert statements(lee, declared, ALICE) == statements(lee, declared, NOBODY)


def test_what_was_said_with_a_subject_that_is_not_shared_costs_as_many_statements_as_nothing(
    as_kee: Caller, tenant: Tenant
) -> None:
    add(as_kee)
    services.set_memory_policy(author=as_kee, share_with=["Kee"], now=T0)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    said = services.store_observation(author=as_kee, text="t", conversation_id="c", now=T0)
    lee = make_caller(tenant, "Lee")

    def supersede(number: int) -> object:
        return services.store_observation(author=lee, text="t", supersedes=f"observation:{number}", now=T0)

    def cite(number: int) -> object:
        return services.store_observation(author=lee, text="t", evidence=[f"observation:{number}"], now=T0)

    def find(number: int) -> object:
        return services.update_pattern(
            author=lee,
            category="c",
            pattern_name="n",
            pattern_text="t",
            confidence=1,
            evidence_observation_ids=[number],
            now=T0,
        )

    def read(number: int) -> object:
        return memory_of(f"observation:{number}", viewer=lee, now=T0)

    with acting_as(lee):
        for act in (supersede, cite, find, read):
            hidden, none = (cost(partial(act, number), "unknown_memory") for number in (said.pk, said.pk + 1000))
            assert hidden == none


def test_an_item_of_a_subject_that_is_not_shared_costs_as_many_statements_as_none(
    as_kee: Caller, tenant: Tenant
) -> None:
    add(as_kee, share_with=["Kee"])
    item = remember(as_kee).item
    lee = make_caller(tenant, "Lee")
    with acting_as(lee):
        hidden, none = (
            cost(partial(memory_of, f"item:{number}", viewer=lee, now=T0), "unknown_memory")
            for number in (item.pk, item.pk + 1000)
        )
    assert hidden == none
