"""No row comes to point at a row of another tenant: foreign keys are checked past row-level security, services are not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction

from apps.memory import services
from apps.memory.selectors import memory_of
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, refused, remember


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The numbers of what a tenant remembers."""

    observation: int
    pattern: int
    item: int


def told(author: Caller) -> Rows:
    """What a tenant remembers of a subject, of each kind one thing."""
    add(author)
    services.record_session(principal=author, conversation_id="c", subject_id=ALICE, now=T0)
    said = services.store_observation(author=author, text="t", conversation_id="c", now=T0)
    return Rows(observation=said.pk, pattern=found(author, []).pk, item=remember(author).item.pk)


def found(author: Caller, numbers: list[int]) -> Any:
    return services.update_pattern(
        author=author,
        category="c",
        pattern_name="n",
        pattern_text="t",
        confidence=1,
        evidence_observation_ids=numbers,
        now=T0,
    )


def resting_on(author: Caller, ref: str) -> Any:
    return services.store_observation(author=author, text="so", evidence=[ref], now=T0)


# Whatever of memory is named by a number, by what it does there.
DOORS: dict[str, Callable[[Caller, Rows], Any]] = {
    "supersede an observation": lambda kee, of: services.store_observation(
        author=kee, text="so", conversation_id="c", supersedes=f"observation:{of.observation}", now=T0
    ),
    "supersede an item": lambda kee, of: remember(kee, "Has moved", supersedes=of.item),
    "rest on an observation": lambda kee, of: resting_on(kee, f"observation:{of.observation}"),
    "rest on a pattern": lambda kee, of: resting_on(kee, f"pattern:{of.pattern}"),
    "rest on an item": lambda kee, of: resting_on(kee, f"item:{of.item}"),
    "remember by an observation": lambda kee, of: remember(kee, "So", evidence=[f"observation:{of.observation}"]),
    "find in an observation": lambda kee, of: found(kee, [of.observation]),
    "read an observation": lambda kee, of: memory_of(f"observation:{of.observation}", viewer=kee, now=T0),
    "read a pattern": lambda kee, of: memory_of(f"pattern:{of.pattern}", viewer=kee, now=T0),
    "read an item": lambda kee, of: memory_of(f"item:{of.item}", viewer=kee, now=T0),
    "forget an item": lambda kee, of: services.forget(author=kee, subject_id=ALICE, item=of.item, now=T0),
}


@pytest.mark.parametrize("act", DOORS.values(), ids=DOORS)
def test_a_number_of_another_tenants_is_refused_as_one_of_nobodys(db: None, act: Callable[[Caller, Rows], Any]) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    with acting_as(stranger):
        theirs = told(stranger)
    with acting_as(kee):
        own = told(kee)

    def refusal(rows: Rows) -> str:
        with acting_as(kee), refused("unknown_memory") as refusal_, transaction.atomic():
            act(kee, rows)
        numbers = {str(number) for number in (rows.observation, rows.pattern, rows.item)}
        return " ".join(
            "n" if word.strip("'.").split(":")[-1] in numbers else word for word in str(refusal_.value).split()
        )

    nobodys = Rows(observation=2**40, pattern=2**40, item=2**40)
    assert refusal(theirs) == refusal(nobodys)
    # Its own it takes.
    with acting_as(kee):
        act(kee, own)
