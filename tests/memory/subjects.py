"""Subjects and what is remembered of them, by the product's services."""

from datetime import datetime, timedelta
from typing import Any, Final

from apps.memory import services
from apps.memory.envelopes import Envelope
from apps.memory.models import Memory, MemoryQuerySet, Subject
from apps.memory.services import Remembered
from apps.memory.shapes import RememberFact
from apps.memory.states import ItemType, Kind
from apps.plans import services as plans
from apps.plans.shapes import CreatePlan
from apps.principals.scopes import Kind as PrincipalKind
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import post, post_grouped
from tests.factories import T0, make_caller, make_tenant
from tests.tasks import making as tasks

ALICE: Final = "USER:alice"
CANARY: Final = "zanzibar-quokka"
DAY: Final = timedelta(days=1)
TICK: Final = timedelta(microseconds=1)


def observations() -> MemoryQuerySet:
    return Memory.objects.of_kind(Kind.OBSERVATION)


def patterns() -> MemoryQuerySet:
    return Memory.objects.of_kind(Kind.PATTERN)


def concepts() -> MemoryQuerySet:
    return Memory.objects.of_kind(Kind.CONCEPT)


def items() -> MemoryQuerySet:
    return Memory.objects.of_kind(Kind.ITEM)


def add(author: Caller, subject_id: str = ALICE, *, now: datetime = T0, **given: Any) -> Subject:
    preferences = given.pop("preferences", {})
    return services.add_subject(author=author, subject_id=subject_id, given=given, preferences=preferences, now=now)


def change(author: Caller, subject_id: str = ALICE, *, now: datetime = T0, **given: Any) -> Subject:
    preferences = given.pop("preferences", {})
    return services.update_subject(author=author, subject_id=subject_id, given=given, preferences=preferences, now=now)


def remember(
    author: Caller, text: str = "Loves fettuccini", subject_id: str = ALICE, *, now: datetime = T0, **given: Any
) -> Remembered:
    if given.get("supersedes") is not None:
        given["supersedes"] = f"item:{given['supersedes']}"
    draft = RememberFact(subject_id=subject_id, fact=text, **given)
    return services.remember(author=author, draft=draft, now=now)


def envelope(viewer: Caller, subject_id: str = ALICE, *, now: datetime = T0) -> Envelope:
    return services.get_memory_envelope(viewer=viewer, subject_id=subject_id, now=now)


def facts(viewer: Caller, subject_id: str = ALICE, *, now: datetime = T0) -> list[str]:
    """The facts that an envelope shows at this moment."""
    return [one.fact for one in envelope(viewer, subject_id, now=now).relational.memorable_facts]


def rev(subject_id: str = ALICE) -> int:
    return Subject.objects.get(key=subject_id).rev


def observe(author: Caller, text: str = "The build takes nine minutes.", *, now: datetime = T0, **given: Any) -> Memory:
    return services.store_observation(author=author, text=text, now=now, **given)


def revise(author: Caller, text: str, *, now: datetime = T0, **given: Any) -> Memory:
    """A pattern, or its next revision."""
    named: dict[str, Any] = {"category": "ci", "pattern_name": "builds", "confidence": 0.8, **given}
    return services.update_pattern(author=author, pattern_text=text, now=now, **named)


def record(principal: Caller, subject_id: str | None = ALICE, *, now: datetime = T0, **given: Any) -> None:
    """A session, by default `c` with Alice."""
    named: dict[str, Any] = {"conversation_id": "c", **given}
    services.record_session(principal=principal, subject_id=subject_id, now=now, **named)


def talk(author: Caller, text: str, *, now: datetime = T0, conversation_id: str = "c", **given: Any) -> Memory:
    return services.store_observation(author=author, text=text, conversation_id=conversation_id, now=now, **given)


def plant(slug: str = "acme", subject_id: str = ALICE, canary: str = CANARY) -> Caller:
    """An agent of a new tenant, with rows about a subject in every room, and a canary in their texts."""
    tenant = make_tenant(slug)
    kee = make_caller(tenant)
    about = {"subject_id": subject_id}
    with acting_as(kee):
        add(kee, subject_id, display_name=canary, domains=[canary], preferences={canary: canary}, learning_level=canary)
        remember(kee, f"Lives in {canary}", subject_id, slot=canary, source=canary, evidence=[canary])
        remember(kee, f"Moved to {canary}", subject_id, slot=canary)
        remember(kee, f"Talks of {canary}", subject_id, type=ItemType.USER_PATTERN)
        record(kee, subject_id, title=canary, summary=canary, topics=[canary], tone=canary, platform=canary)
        talk(kee, f"I like {canary}", speaker=canary, domain=canary)
        older = observe(kee, f"Likes {canary}", metadata=about)
        observe(kee, f"Adores {canary}", metadata=about, supersedes=older.ref)
        revise(kee, canary, pattern_name=subject_id)
        services.store_concept(author=kee, name=canary, metadata=about, aliases=[f"the {canary}"], now=T0)
        services.add_relationship(
            author=kee, from_concept=canary, to_concept="b", rel_type="knows", description=canary, now=T0
        )
        envelope(kee, subject_id)
        post(kee, title=canary, summary=canary, metadata={**about, "said": canary}, requires_action=True)
        post_grouped(kee, f"{subject_id}", summary=canary, title=canary, flush_class="immediate")
    worker = make_caller(tenant, "worker-1", PrincipalKind.WORKER)
    tasks.make_type(kee)
    for content in ({"said": canary}, {"said": [canary] * 9000}):
        tasks.queue(kee, params={"path": "/x", **about, "said": canary})
        tasks.complete(worker, tasks.lease_one(worker), content=content, summary=f"Found {canary}")
    tasks.queue(kee, params={"path": "/x", **about, "said": canary})
    with acting_as(kee):
        plans.create_plan(caller=kee, given=CreatePlan(intent=f"index {subject_id} {canary}"), now=T0)
    return kee
