"""What is forgotten is nowhere, is not brought back by a repetition, and a receipt proves it."""

import json
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.core.files.storage import storages
from django.db import DatabaseError, connection, models, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import TypeAdapter, ValidationError

from apps.core import erasure
from apps.core.erasure import Rows, Wanted
from apps.digests.selectors import read_inbox
from apps.memory import selectors, services, sql
from apps.memory.errors import ForgottenOnRequest, UnknownMemory, UnknownSubject
from apps.memory.models import CommonWord, EnvelopeLoaded, Forgotten, Item, Observation, Passage, Session, Subject
from apps.memory.states import ItemType
from apps.memory.tools.shapes import SubjectId
from apps.memory.tools.subjects import ExportSubject, export_subject
from apps.plans import services as plans
from apps.plans.services import PlanRequest
from apps.principals.models import Tenant, TenantModel
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.receipts.selectors import chain
from tests import ground
from tests.digests.makers import post, post_grouped
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, change, envelope, facts, remember
from tests.tasks import making as tasks
from tests.waiters import until_somebody_waits_for_this_transaction

pytestmark = pytest.mark.usefixtures("own_artifacts")

CANARY = "zanzibar-quokka"
DAY = timedelta(days=1)


def everything() -> dict[str, list[str]]:
    """Every row of every table, whoever made it, and every artifact, as text."""
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(
            "select oid::regclass::text from pg_class"
            " where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'm') and not relispartition"
        )
        rows: dict[str, list[str]] = {}
        for (table,) in cursor.fetchall():
            cursor.execute(f"select t::text from {table} t")
            rows[table] = [row for (row,) in cursor.fetchall()]
    root = Path(storages["artifacts"].path(""))
    files = [path.read_text(errors="replace") for path in root.rglob("*") if path.is_file()]
    return {**rows, "artifacts": files}


def traces(needle: str) -> dict[str, int]:
    """In how many rows of which tables a text stands."""
    found = {table: sum(needle.lower() in row.lower() for row in rows) for table, rows in everything().items()}
    return {table: number for table, number in found.items() if number}


def plant(slug: str = "acme", subject_id: str = ALICE, canary: str = CANARY) -> Caller:
    """An agent of a new tenant, with a canary wherever words about a subject can stand, by the product's own doors."""
    tenant = make_tenant(slug)
    kee = make_caller(tenant)
    about = {"subject_id": subject_id}
    with acting_as(kee):
        add(kee, subject_id, display_name=canary, domains=[canary], preferences={canary: canary}, learning_level=canary)
        remember(kee, f"Lives in {canary}", subject_id, slot=canary, source=canary, evidence=[canary])
        remember(kee, f"Moved to {canary}", subject_id, slot=canary)
        remember(kee, f"Talks of {canary}", subject_id, type=ItemType.USER_PATTERN)
        services.record_session(
            principal=kee,
            conversation_id="c",
            subject_id=subject_id,
            title=canary,
            summary=canary,
            topics=[canary],
            tone=canary,
            platform=canary,
            now=T0,
        )
        services.store_observation(
            author=kee, text=f"I like {canary}", conversation_id="c", speaker=canary, domain=canary, now=T0
        )
        older = services.store_observation(author=kee, text=f"Likes {canary}", metadata=about, now=T0)
        services.store_observation(author=kee, text=f"Adores {canary}", metadata=about, supersedes=older.ref, now=T0)
        services.update_pattern(
            author=kee, category="c", pattern_name=subject_id, pattern_text=canary, confidence=1, now=T0
        )
        services.store_concept(author=kee, name=canary, metadata=about, aliases=[f"the {canary}"], now=T0)
        services.add_relationship(
            author=kee, from_concept=canary, to_concept="b", rel_type="knows", description=canary, now=T0
        )
        envelope(kee, subject_id)
        post(kee, title=canary, summary=canary, metadata={**about, "said": canary}, requires_action=True)
        post_grouped(kee, f"{subject_id}", summary=canary, title=canary, flush_class="immediate")
    worker = make_caller(tenant, "worker-1", Kind.WORKER)
    tasks.make_type(kee)
    for content in ({"said": canary}, {"said": [canary] * 9000}):
        tasks.queue(kee, params={"path": "/x", **about, "said": canary})
        tasks.complete(worker, tasks.lease_one(worker), content=content, summary=f"Found {canary}")
    tasks.queue(kee, params={"path": "/x", **about, "said": canary})
    with acting_as(kee):
        plans.create_plan(caller=kee, request=PlanRequest(intent=f"index {subject_id} {canary}"), now=T0)
    return kee


def forget(author: Caller, **given: Any) -> services.Erasure:
    with acting_as(author):
        return services.forget(author=author, subject_id=ALICE, now=T0, **given)


def test_a_forgotten_subject_leaves_no_trace_and_others_stay(transactional_db: None) -> None:
    kee = plant()
    with acting_as(kee):
        add(kee, "USER:alice.b", display_name="stays")
        remember(kee, "Stays here", "USER:alice.b")
    planted = traces(CANARY)
    assert {
        "memory_item",
        "memory_session",
        "receipts_receipt",
        "digests_entry",
        "tasks_task",
        "artifacts",
    } <= planted.keys()

    done = forget(kee)

    assert traces(CANARY) == {}
    assert {place: rows for place, rows in everything().items() if any('"USER:alice"' in row for row in rows)} == {}
    assert done.remaining == {}
    with acting_as(kee):
        assert selectors.recall(CANARY, caller=kee) == []
        assert facts(kee, "USER:alice.b") == ["Stays here"]
        for ask in (
            lambda: envelope(kee),
            lambda: selectors.subject_of(ALICE, viewer=kee),
            lambda: remember(kee),
            lambda: change(kee, display_name=CANARY),
        ):
            with pytest.raises(UnknownSubject), transaction.atomic():
                ask()
        for entry in read_inbox(kee.principal_id).entries:
            assert CANARY not in f"{entry.title} {entry.summary}"


def test_words_that_are_counted_because_they_are_common_leave_no_trace_either(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "COMMON", 1)
    kee = plant()
    count_words()
    assert traces(CANARY)["memory_commonword"] > 1
    forget(kee)
    assert traces(CANARY) == {}


def count_words() -> None:
    """As the ticks do it."""
    services.fold_tallies()
    assert services.count_common_words() > 0


def common_words() -> dict[str, set[int]]:
    """The scopes in which words are counted as common ones."""
    found: dict[str, set[int]] = {}
    for term, scope in CommonWord.objects.values_list("term", "scope"):
        found.setdefault(term, set()).add(scope)
    return found


def test_a_word_is_counted_as_common_no_longer_than_enough_others_have_said_it(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "COMMON", 3)
    add(as_kee)
    for number in range(40):
        about = {"subject_id": ALICE} if number < 2 else {}
        text = "quokka lives" if number < 5 else "lives" if number < 12 else "else"
        services.store_observation(author=as_kee, text=text, metadata=about, now=T0)
    count_words()
    assert common_words().keys() == {"quokka", "live", "els"}
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    # Less than a tenth has changed: nobody counts anew.
    assert services.count_common_words() == 0
    assert common_words().keys() == {"live", "els"}


def test_words_of_a_conversation_are_gone_from_the_scope_in_which_they_were_counted_before_it_had_a_subject(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "COMMON", 1)
    add(as_kee)
    for number in range(30):
        services.store_observation(author=as_kee, text=f"else {number}", now=T0)
    for number in range(2):
        talk(as_kee, f"{CANARY} {number}")
    count_words()
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    assert common_words()["quokka"] == {0}
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    assert common_words().keys() == {"els"}


@pytest.mark.parametrize("of_item", [True, False])
def test_words_of_an_item_and_of_what_has_had_its_days_are_counted_as_common_no_longer(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch, of_item: bool
) -> None:
    monkeypatch.setattr(sql, "COMMON", 1)
    add(as_kee, delete_after_days=2)
    for number in range(30):
        remember(as_kee, f"else {number}", now=T0 + DAY)
    remember(as_kee, "quokka 30", slot="pet")
    item = remember(as_kee, "quokka 31", slot="pet").item
    count_words()
    assert common_words().keys() == {"els", "quokka"}
    if of_item:
        services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    else:
        at(T0 + 2 * DAY)
        services.forget_expired()
    assert common_words().keys() == {"els"}


def test_a_repetition_of_what_was_forgotten_is_refused(transactional_db: None) -> None:
    kee = plant()
    forget(kee)
    with acting_as(kee):
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            add(kee, display_name=CANARY)
        assert not Subject.objects.exists()
        services.add_subject(
            author=kee, subject_id=ALICE, change=services.SubjectChange(given={}), remember_again=True, now=T0
        )
        with pytest.raises(ForgottenOnRequest), transaction.atomic():
            remember(kee, f"moved to {CANARY}.")
        assert not Item.objects.exists()
        assert remember(kee, f"Moved to {CANARY}", remember_again=True).item.pk
    assert Forgotten.objects.count() == 0  # nobody's tenant is set


def test_a_receipt_proves_it_and_says_nothing_of_what(transactional_db: None) -> None:
    kee = plant()
    done = forget(kee)
    with acting_as(kee):
        receipt = Receipt.objects.get(receipt_id=done.receipt_id)
        assert (receipt.event_type, receipt.surface) == ("memory_forgotten", "ledger")
        assert receipt.metadata["erased"] == done.erased
        assert (done.erased["memory_item"], done.erased["artifacts"]) == (3, 1)
        assert receipt.metadata["proof"] == done.proof == selectors.mark_of(ALICE).hex()
        said = json.dumps([receipt.title, receipt.summary, receipt.metadata])
        assert CANARY not in said
        assert "alice" not in said


def test_what_is_redacted_is_told_as_such_and_chains_stay(transactional_db: None) -> None:
    kee = plant()
    with acting_as(kee):
        before = Receipt.objects.count()
    forget(kee)
    with acting_as(kee):
        assert Receipt.objects.count() == before + 1
        redacted = Receipt.objects.exclude(redacted_at=None)
        assert {(row.title, row.summary, str(row.metadata)) for row in redacted} == {(None, "", "{}")}
        for row in redacted:
            chain(row.receipt_id)


def test_a_forgotten_item_takes_what_said_the_same_and_what_it_superseded(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, f"Lives in Berlin {CANARY}", slot="home")
    last = remember(as_kee, f"Lives in Paris {CANARY}", slot="home", now=T0 + DAY)
    remember(as_kee, "Loves fettuccini")
    services.record_session(
        principal=as_kee, conversation_id="c", subject_id=ALICE, summary=f"Lives in Paris {CANARY}!", now=T0
    )
    for said in (f"I know: Lives in Berlin {CANARY}", "What else?"):
        services.store_observation(author=as_kee, text=said, conversation_id="c", now=T0)
    revision = Subject.objects.get().rev

    done = services.forget(author=as_kee, subject_id=ALICE, item=last.item.pk, now=T0)

    assert [item.text for item in Item.objects.all()] == ["Loves fettuccini"]
    assert Session.objects.get().summary == ""
    assert sorted(Observation.objects.values_list("text", flat=True)) == ["", "What else?"]
    assert Subject.objects.get().rev > revision
    assert done.remaining == {}
    assert traces(CANARY) == {}
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        remember(as_kee, f"Lives in Berlin {CANARY}")
    with pytest.raises(UnknownMemory), transaction.atomic():
        services.forget(author=as_kee, subject_id=ALICE, item=last.item.pk, now=T0)


def test_what_a_forgotten_item_superseded_goes_in_every_spelling(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Lives in Berlin", slot="home")
    remember(as_kee, "Lives  in  Berlin!", type=ItemType.SHARED_NARRATIVE)
    last = remember(as_kee, "Lives in Paris", slot="home", now=T0 + DAY)
    services.forget(author=as_kee, subject_id=ALICE, item=last.item.pk, now=T0 + DAY)
    assert not Item.objects.exists()


def test_what_was_superseded_by_something_forgotten_stays_known_as_superseded(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        add(kee, "USER:bob")
        remember(kee, "Lives in Paris", "USER:bob", slot="home", valid_from=T0 - 9 * DAY)
        remember(kee, f"Lives with {ALICE}", "USER:bob", slot="home", valid_from=T0 - 9 * DAY, now=T0 + DAY)
        services.store_concept(
            author=kee, name="Tom", aliases=["Tomcat"], metadata={"subject_id": ALICE}, description="A cat.", now=T0
        )
    done = forget(kee)
    assert (done.erased["memory_item"], done.erased["memory_concept"]) == (1, 1)
    with acting_as(kee):
        left = Item.objects.get()
        assert (left.text, left.superseded_at, left.superseded_by) == ("Lives in Paris", T0 + DAY, None)
        assert Passage.objects.filter(item=left).exists()
        assert facts(kee, "USER:bob", now=T0 + DAY) == []
        bob = Subject.objects.get()
        assert [item.text for item in selectors.items(bob, now=T0 + DAY, known_at=T0)] == ["Lives in Paris"]
        # The slot is free.
        remember(kee, "Lives in Rome", "USER:bob", slot="home", now=T0 + DAY)
        assert facts(kee, "USER:bob", now=T0 + DAY) == ["Lives in Rome"]


PLACES = [
    "text", "speaker", "domain", "metadata", "evidence", "title", "summary", "topics", "tone", "platform", "item", "note",
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "text"),
    [(place, "HIV") for place in PLACES]
    + [("text", text) for text in ("Vegan.", "住東京", "C++", "Lives in a city by the sea")],
)
def test_the_words_of_a_forgotten_item_stand_nowhere_that_is_about_its_subject(
    as_kee: Caller, where: str, text: str
) -> None:
    add(as_kee)
    item = remember(as_kee, text).item
    bare = text.rstrip(".")
    held: Any = {"topics": [bare], "evidence": [bare], "metadata": {"heard": f"\n{bare}"}}.get(
        where, f"so: {bare.upper()}!"[:50]
    )
    session: dict[str, Any] = {where: held} if where in {"title", "summary", "topics", "tone", "platform"} else {}
    turn: dict[str, Any] = {where: held} if where in {"text", "speaker", "domain", "metadata", "evidence"} else {}
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0, **session)
    talk(as_kee, turn.pop("text", "Yes."), **turn)
    talk(as_kee, "Stays.")
    if where == "item":
        remember(as_kee, f"Says so: {bare}")
    if where == "note":
        services.store_observation(author=as_kee, text=f"{bare}!", metadata={"subject_id": ALICE}, now=T0)

    done = services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)

    assert traces(bare) == {}
    assert "Stays." in said()
    assert (done.remaining, Item.objects.exists()) == ({}, False)


TOLD = 'Lives in "Zürich", at the sea\\shore'


@pytest.mark.parametrize(
    "spelled",
    [
        unicodedata.normalize("NFD", TOLD),
        TOLD.replace(" ", "\u00a0 "),
        TOLD.replace(" ", "\n\t"),
        TOLD.replace("L", "\uff2c"),
        TOLD.replace("Z", "\u200bZ\u00ad"),
        TOLD.upper(),
        {"raw": TOLD},
        {"raw": json.dumps({"told": TOLD})},
        {"raw": json.dumps({"told": json.dumps([TOLD], ensure_ascii=False)})},
        {"raw": json.dumps(TOLD).replace('\\"', r"\u0022").replace(r"\u00fc", r"\u00FC")},
        [TOLD],
    ],
    ids=[
        "decomposed",
        "spaces",
        "lines",
        "wide",
        "unseen",
        "capitals",
        "metadata",
        "json",
        "json in json",
        "spelled",
        "array",
    ],
)
def test_the_words_of_a_forgotten_item_are_found_in_other_spellings(as_kee: Caller, spelled: Any) -> None:
    add(as_kee)
    item = remember(as_kee, TOLD).item
    topics = spelled if isinstance(spelled, list) else []
    metadata = spelled if isinstance(spelled, dict) else {}
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, topics=topics, now=T0)
    talk(as_kee, f"So: {spelled}!" if isinstance(spelled, str) else "Yes.", metadata=metadata)
    talk(as_kee, "Stays.", metadata={"heard": "Lives in Zurich"})

    done = services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)

    assert said_alone() == ["Stays.", *["Yes."] * bool(topics)][::-1]
    assert (Session.objects.get().topics, done.remaining) == ([], {})


@pytest.mark.parametrize("text", ["-", "!?", "🎉", "\u200b", r"\n"])
def test_of_an_item_without_letters_and_digits_nothing_else_is_taken(as_kee: Caller, text: str) -> None:
    add(as_kee)
    item = remember(as_kee, text).item
    kept = remember(as_kee, f"Loves rye{text}bread").item
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, title=text, now=T0)
    talk(as_kee, f"Well {text} yes")
    services.store_observation(author=as_kee, text=text, metadata={"subject_id": ALICE}, now=T0)

    done = services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)

    assert (list(Item.objects.all()), Session.objects.get().title) == ([kept], text)
    assert said_alone() == [f"Well {text} yes", text]
    assert (done.erased, done.remaining) == ({"memory_item": 1}, {})
    with pytest.raises(ForgottenOnRequest), transaction.atomic():
        remember(as_kee, text)


def test_where_an_item_stays_in_the_name_of_a_conversation_is_told(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, f"Lives in {CANARY}").item
    services.record_session(principal=as_kee, conversation_id=f"Lives in {CANARY}", subject_id=ALICE, now=T0)
    assert services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0).remaining == {"memory_session": 1}


def test_forgetting_an_item_takes_nothing_that_is_about_somebody_else(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, "USER:bob")
    item = remember(as_kee, f"Lives in {CANARY}").item
    kept = remember(as_kee, f"Lives in {CANARY}", "USER:bob").item
    services.record_session(principal=as_kee, conversation_id="c", subject_id="USER:bob", tone=CANARY, now=T0)
    talk(as_kee, f"Lives in {CANARY}")
    talk(as_kee, f"Lives in {CANARY}", conversation_id="of nobody")
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    assert (Item.objects.get(), Session.objects.get(subject__key="USER:bob").tone) == (kept, CANARY)
    assert said() == [f"Lives in {CANARY}"] * 2


def test_an_item_of_many_long_versions_is_forgotten(as_kee: Caller) -> None:
    add(as_kee)
    versions = [f"Feels {number} " + f"{number:03}é" * 480 for number in range(60)]
    items = [
        remember(as_kee, said, slot="mood", now=T0 + timedelta(seconds=number), valid_from=T0).item
        for number, said in enumerate(versions)
    ]
    services.store_observation(author=as_kee, text=versions[7], metadata={"subject_id": ALICE}, now=T0)
    services.forget(author=as_kee, subject_id=ALICE, item=items[-1].pk, now=T0 + DAY)
    assert (Item.objects.exists(), Observation.objects.get().text) == (False, "")


def test_who_may_not_know_a_subject_can_not_forget_it(as_kee: Caller, tenant: Tenant) -> None:
    add(as_kee, share_with=["Kee"])
    for subject_id in (ALICE, "USER:nobody"):
        with pytest.raises(UnknownSubject), transaction.atomic():
            services.forget(author=make_caller(tenant, "Lee"), subject_id=subject_id, now=T0)
    assert Subject.objects.exists()
    assert not Forgotten.objects.exists()


def test_the_other_tenant_of_the_same_subject_keeps_everything(transactional_db: None) -> None:
    kee, _ = plant(), plant("globex", canary="other-canary")
    before = traces("other-canary")
    forget(kee)
    assert traces("other-canary") == before


def test_what_can_not_be_erased_is_told_by_place_and_in_the_receipt(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        post(kee, receipt_id=f"R/{ALICE}")
    done = forget(kee)
    assert {"receipts_receipt", "receipts_receiptkey"} <= done.remaining.keys()
    with acting_as(kee):
        assert Receipt.objects.get(receipt_id=done.receipt_id).metadata["remaining"] == done.remaining
        assert f"{sum(done.remaining.values())} names remain" in Receipt.objects.get(receipt_id=done.receipt_id).summary


_MANY = """
with made as (
    insert into memory_item (tenant_id, subject_id, author_id, type, text, text_digest, confidence, source, stated,
                             evidence, valid_from, said_at, recorded_at)
    select s.tenant_id, s.id, %(author)s, 'USER_FACT', 'fact ' || n, sha256(n::text::bytea), 0.5, '', false, '[]',
           %(now)s, %(now)s, %(now)s
    from memory_subject s, generate_series(1, %(many)s) n where s.key = 'USER:alice'
    returning id, tenant_id, subject_id, text
), passages as (
    insert into memory_passage (tenant_id, item_id, scope, domain, length, recorded_at)
    select tenant_id, id, subject_id, 'USER_FACT', 1, %(now)s from made
    returning id, tenant_id, scope
)
insert into memory_posting (tenant_id, scope, term, passage_id, frequency, length)
select tenant_id, scope, 'fact', id, 1, 1 from passages
"""


def test_much_is_forgotten_in_as_many_statements_as_little(as_kee: Caller) -> None:
    statements = []
    for many in (1, 2_000):
        services.add_subject(
            author=as_kee, subject_id=ALICE, change=services.SubjectChange(given={}), remember_again=True, now=T0
        )
        with connection.cursor() as cursor:
            given: dict[str, Any] = {"author": as_kee.principal_id, "now": T0, "many": many}
            cursor.execute(_MANY, given)
        with CaptureQueriesContext(connection) as captured:
            done = services.forget(author=as_kee, subject_id=ALICE, now=T0)
        statements.append(len(captured))
        assert done.erased["memory_item"] == many
        assert not Item.objects.exists()
        assert not Passage.objects.exists()
    assert statements[1] <= statements[0]
    # Of the texts of each one for the subject and one for any, and both times the subject.
    assert Forgotten.objects.count() == 2 * 2_000 + 1


# Before it is forgotten.


def test_an_export_holds_whatever_forgetting_its_subject_erases_by_its_key(as_kee: Caller) -> None:
    add(as_kee, display_name=f"{CANARY} 1", preferences={f"{CANARY} 2": f"{CANARY} 3"}, domains=[f"{CANARY} 4"])
    remember(as_kee, f"{CANARY} 5", slot=f"{CANARY} 6", source=f"{CANARY} 7")
    remember(as_kee, f"{CANARY} 8", slot=f"{CANARY} 6")
    services.record_session(
        principal=as_kee, conversation_id="c", subject_id=ALICE, title=f"{CANARY} 9", topics=[f"{CANARY} 10"], now=T0
    )
    talk(as_kee, f"{CANARY} 11", speaker=f"{CANARY} 12", metadata={"said": f"{CANARY} 13"}, domain=f"{CANARY} 14")
    talk(as_kee, "of nobody", conversation_id="of nobody")
    exported = json.dumps(asdict(selectors.export(Subject.objects.get(), now=T0)), default=str)
    assert [number for number in range(1, 15) if f'"{CANARY} {number}"' not in exported] == []
    assert "of nobody" not in exported


def test_a_long_export_goes_on_list_by_list_to_its_end(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.selectors.subjects.AT_ONCE", 2)
    add(as_kee)
    for number in range(5):
        remember(as_kee, f"fact {number}")
        named = f"c{number}"
        services.record_session(principal=as_kee, conversation_id=named, subject_id=ALICE, now=T0)
        talk(as_kee, f"turn {number}", conversation_id=named)
        envelope(as_kee)

    told: dict[str, list[Any]] = {"items": [], "sessions": [], "envelopes_loaded": [], "turns": []}
    asked: dict[str, int] = {}
    goes_on = True
    while goes_on:
        with CaptureQueriesContext(connection) as captured:
            page = export_subject(as_kee, ExportSubject(subject_id=ALICE, **asked))
        assert sum(query["sql"].endswith("LIMIT 2") for query in captured) == (len(asked) or len(told))
        assert bool(page.subject) == (not asked)
        for name in told:
            told[name] += getattr(page, name)
        following = {f"{name}_after": getattr(page, f"next_{name}_after") for name in told}
        asked = {name: number for name, number in following.items() if number is not None}
        goes_on = bool(asked)

    assert [one["text"] for one in told["items"]] == [f"fact {number}" for number in range(5)]
    assert [one["conversation_id"] for one in told["sessions"]] == [f"c{number}" for number in range(5)]
    assert [one["text"] for one in told["turns"]] == [f"turn {number}" for number in range(5)]
    assert len({one["id"] for one in told["envelopes_loaded"]}) == 5


_TALKED = """
with met as (
    insert into memory_session (tenant_id, principal_id, subject_id, conversation_id, platform, title, summary, topics,
                                tone, turns, started_at, last_active_at)
    select s.tenant_id, %(author)s, s.id, s.key || n, '', '', '', '{}', '', 5, %(now)s, %(now)s
    from memory_subject s, generate_series(1, %(many)s) n where s.key = 'USER:alice'
    returning id, tenant_id, subject_id
), said as (
    insert into memory_observation (tenant_id, author_id, session_id, text, domain, confidence, evidence, metadata,
                                    occurred_at, recorded_at)
    select tenant_id, %(author)s, id, 'turn', '', 1, '[]', '{}', %(now)s, %(now)s from met, generate_series(1, 5)
)
insert into memory_envelopeloaded (tenant_id, subject_id, viewer_id, rev, digest, loaded_at)
select tenant_id, subject_id, %(author)s, 1, '', %(now)s from met, generate_series(1, 5)
"""


def test_a_page_of_an_export_reads_its_own_rows_by_index(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.selectors.subjects.AT_ONCE", 5)
    given: dict[str, Any] = {"author": as_kee.principal_id, "now": T0, "many": 200}
    for subject_id in (*(f"USER:{number}" for number in range(10)), ALICE):
        add(as_kee, subject_id)
        with connection.cursor() as cursor:
            for statement in (_MANY, _TALKED):
                cursor.execute(statement.replace(ALICE, subject_id), given)
    read = {"memory_item", "memory_session", "memory_envelopeloaded", "memory_observation"}
    ground.analyzed(*read)
    subject = Subject.objects.get(key=ALICE)
    middle = {
        "items": Item.objects.filter(subject=subject),
        "sessions": Session.objects.filter(subject=subject),
        "envelopes_loaded": EnvelopeLoaded.objects.filter(subject=subject),
        "turns": Observation.objects.filter(session__subject=subject),
    }
    after = {name: rows.order_by("pk")[100].pk for name, rows in middle.items()}
    with CaptureQueriesContext(connection) as captured:
        selectors.export(subject, now=T0, after=after)
    pages = [query["sql"] for query in captured if query["sql"].endswith("LIMIT 5")]
    assert len(pages) == len(selectors.PARTS)
    for page in pages:
        with connection.cursor() as cursor:
            cursor.execute(f"explain (analyze, format json) {page}")
            (answer,) = cursor.fetchone()
        (explained,) = json.loads(answer) if isinstance(answer, str) else answer
        for node in nodes_of(explained["Plan"]):
            if node.get("Relation Name") in read:
                rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                assert (node["Node Type"] == "Seq Scan", rows <= 20) == (False, True), explained


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes_of(part)


def test_turns_are_exported_session_by_session_and_follow_one_that_was_forgotten_since(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.memory.selectors.subjects.AT_ONCE", 2)
    add(as_kee)
    for named in ("a", "b"):
        services.record_session(principal=as_kee, conversation_id=named, subject_id=ALICE, now=T0)
    for number in range(4):
        talk(as_kee, f"turn {number}", conversation_id="ab"[number % 2])
    first = export_subject(as_kee, ExportSubject(subject_id=ALICE))
    assert [one["text"] for one in first.turns] == ["turn 0", "turn 2"]
    with acting_as_system("test"), erasure.redacting():
        services.forget_observations([first.turns[-1]["id"]])
    second = export_subject(as_kee, ExportSubject(subject_id=ALICE, turns_after=first.next_turns_after))
    assert [one["text"] for one in second.turns] == ["turn 1", "turn 3"]
    with pytest.raises(UnknownMemory):
        export_subject(as_kee, ExportSubject(subject_id=ALICE, turns_after=2**40))


def test_an_export_goes_on_in_the_lists_that_are_asked_for_and_no_other(as_kee: Caller) -> None:
    add(as_kee)
    first, second = (remember(as_kee, text).item.pk for text in ("one", "two"))
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    page = export_subject(as_kee, ExportSubject(subject_id=ALICE, items_after=first))
    assert [one["id"] for one in page.items] == [second]
    assert (page.subject, page.sessions, page.next_items_after) == ({}, [], None)


# The sweep.


def at(moment: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])


def test_what_has_had_its_days_is_deleted_and_nothing_else(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    add(as_kee, "USER:bob")
    for subject_id in (ALICE, "USER:bob"):
        remember(as_kee, "old", subject_id)
        remember(as_kee, "new", subject_id, now=T0 + DAY)
        services.record_session(principal=as_kee, conversation_id=subject_id, subject_id=subject_id, now=T0)
    revisions = dict(Subject.objects.values_list("key", "rev"))

    at(T0 + 2 * DAY - timedelta(microseconds=1))
    assert services.forget_expired() == 0
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 0

    assert sorted(Item.objects.values_list("subject__key", "text")) == [
        (ALICE, "new"),
        ("USER:bob", "new"),
        ("USER:bob", "old"),
    ]
    assert list(Session.objects.values_list("subject__key", flat=True)) == ["USER:bob"]
    after = dict(Subject.objects.values_list("key", "rev"))
    assert (after[ALICE] > revisions[ALICE], after["USER:bob"]) == (True, revisions["USER:bob"])


def talk(author: Caller, text: str, *, now: datetime = T0, conversation_id: str = "c", **given: Any) -> Observation:
    return services.store_observation(author=author, text=text, conversation_id=conversation_id, now=now, **given)


def said() -> list[str]:
    """What is left of what was said, and found."""
    found = list(Observation.objects.exclude(text="").order_by("pk").values_list("text", flat=True))
    assert len(found) == Passage.objects.exclude(observation=None).count()
    return found


def test_turns_that_have_had_their_days_are_deleted_while_their_conversation_goes_on(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    add(as_kee, "USER:bob")
    for subject_id, conversation_id in ((ALICE, "c"), ("USER:bob", "of bob"), (ALICE, "d")):
        services.record_session(
            principal=as_kee, conversation_id=conversation_id, subject_id=subject_id, summary="s", now=T0
        )
    for day in range(4):
        talk(as_kee, f"day {day}", speaker="Alice", metadata={"mood": "glad"}, now=T0 + day * DAY)
    talk(as_kee, "of bob", conversation_id="of bob")
    talk(as_kee, "of nobody", conversation_id="of nobody")

    for moment, left in (
        (T0 + 2 * DAY - timedelta(microseconds=1), ["day 0", "day 1", "day 2", "day 3"]),
        (T0 + 2 * DAY, ["day 1", "day 2", "day 3"]),
        (T0 + 4 * DAY, ["day 3"]),
        (T0 + 5 * DAY, []),
    ):
        at(moment)
        services.forget_expired()
        assert said() == [*left, "of bob", "of nobody"]
    assert set(Observation.objects.filter(text="").values_list("speaker", "metadata__mood")) == {("", None)}
    assert traces("day 0") == {}
    assert services.forget_expired() == 0


def test_a_conversation_goes_on_where_all_that_was_said_in_it_is_deleted(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    talk(as_kee, "old")
    services.record_session(principal=as_kee, conversation_id="c", summary="still here", now=T0 + DAY)
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    assert envelope(as_kee, now=T0 + 2 * DAY).recent_context.session_summary == "still here"
    talk(as_kee, "new", now=T0 + 2 * DAY)
    assert said() == ["new"]


def test_turns_that_were_said_before_their_subject_was_known_have_their_days_too(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    talk(as_kee, "old")
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0 + DAY)
    at(T0 + 2 * DAY)
    services.forget_expired()
    assert said() == []


def test_fewer_days_hold_for_what_is_stored_already_and_none_for_nothing(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    at(T0 + 100 * DAY)
    assert services.forget_expired() == 0
    for days, left in ((200, 1), (101, 1), (None, 1), (100, 0)):
        change(as_kee, delete_after_days=days, now=T0 + 100 * DAY)
        services.forget_expired()
        assert Item.objects.count() == left
    assert Subject.objects.get().expires_at is None


def test_more_than_is_deleted_at_once_is_deleted_all_the_same(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.services.forgetting._AT_ONCE", 2)
    add(as_kee, delete_after_days=2)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    for number in range(5):
        talk(as_kee, f"turn {number}")
        remember(as_kee, f"item {number}")
    talk(as_kee, "new", now=T0 + DAY)
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    assert (said(), Item.objects.count()) == (["new"], 0)


def test_the_sweep_looks_at_no_subject_before_something_of_it_has_had_its_days(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    remember(as_kee)
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into memory_subject (tenant_id, key, display_name, learning_level, domains, preferences,"
            " memory_enabled, learn_patterns, anonymize_dates, delete_after_days, expires_at, rev, created_at, revised_at)"
            " select tenant_id, 'USER:' || n, '', '', '{}', '{}', true, true, false, 9, %(now)s::timestamptz + n * interval"
            " '1 hour', 1, %(now)s, %(now)s from memory_subject, generate_series(49, 5000) n",
            {"now": T0},
        )
        ground.analyzed("memory_subject")
    at(T0 + 2 * DAY)
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(f"explain {sql.EXPIRED}", {"limit": 1000})
        assert "memory_subject_expiring" in str(cursor.fetchall())
    with CaptureQueriesContext(connection) as captured:
        assert services.forget_expired() == 1
    assert len(captured) < 40


def test_no_name_of_a_conversation_is_in_the_way_of_forgetting(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    session = services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    services.store_observation(author=as_kee, text="Hello.", conversation_id="c", now=T0)
    services.record_session(principal=as_kee, conversation_id=f"forgotten:{session.pk}", now=T0)
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    assert Observation.objects.get().text == ""


@pytest.mark.parametrize("at_its_wish", [True, False])
def test_sessions_are_held_before_their_subject_as_by_those_who_speak(as_kee: Caller, at_its_wish: bool) -> None:
    add(as_kee, delete_after_days=2)
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    services.store_observation(author=as_kee, text="Hello.", conversation_id="c", now=T0)
    at(T0 + 2 * DAY)
    with CaptureQueriesContext(connection) as captured:
        if at_its_wish:
            services.forget(author=as_kee, subject_id=ALICE, now=T0)
        else:
            services.forget_expired()
    holding = [sql for one in captured if " for " in (sql := one["sql"].lower().replace('"', ""))]
    tables = [table for sql in holding for table in ("memory_session", "memory_subject") if f"from {table}" in sql]
    assert (tables[0], "memory_subject" in tables) == ("memory_session", True)


def test_a_conversation_that_comes_to_be_with_a_subject_while_it_is_forgotten_is_waited_for_before_it(
    transactional_db: None,
) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        talk(kee, "Hello.")
    failed: list[Exception] = []

    def meanwhile(act: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                with acting_as(kee):
                    act()
            except DatabaseError as exc:
                failed.append(exc)
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with acting_as(kee):
        services.record_session(principal=kee, conversation_id="c", subject_id=ALICE, now=T0)
        # The one waits for the subject, the other for the conversation and then for the subject.
        forgetting = meanwhile(lambda: services.forget(author=kee, subject_id=ALICE, now=T0))
        until_somebody_waits_for_this_transaction()
        speaking = meanwhile(lambda: talk(kee, f"Of {CANARY}."))
        until_somebody_waits_for_this_transaction(2)
    for thread in (forgetting, speaking):
        thread.join(timeout=30)
    assert failed == []
    with acting_as(kee):
        assert (said(), Subject.objects.exists()) == ([], False)


def test_old_notes_of_readers_are_removed(as_kee: Caller) -> None:
    add(as_kee)
    envelope(as_kee)
    at(T0 + 365 * DAY)
    services.forget_expired()
    assert EnvelopeLoaded.objects.exists()
    at(T0 + 365 * DAY + timedelta(seconds=1))
    services.forget_expired()
    assert not EnvelopeLoaded.objects.exists()


# Whole tables.

# Of a foreign key within memory, the indexes that begin with its column and hold all rows that refer to anything.
_UNSERVED = """
select conrelid::regclass::text, a.attname
from pg_constraint c join pg_attribute a on a.attrelid = conrelid and a.attnum = conkey[1]
where contype = 'f' and conrelid::regclass::text like 'memory_%%' and confrelid::regclass::text like 'memory_%%'
  and not exists (
      select from pg_index i where indrelid = conrelid and indkey[0] = conkey[1]
        and (indpred is null or pg_get_expr(indpred, indrelid) = format('(%%I IS NOT NULL)', a.attname)
             or pg_get_expr(indpred, indrelid) = format('%%I IS NOT NULL', a.attname)))
order by 1, 2
"""


def test_nothing_is_removed_by_reading_a_whole_table_for_what_refers_to_it(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_UNSERVED, {})
        assert cursor.fetchall() == []


def test_forgetting_may_read_tables_for_longer_than_others_may_and_they_no_longer_than_before(as_kee: Caller) -> None:
    def limit() -> str:
        with connection.cursor() as cursor:
            cursor.execute("show statement_timeout")
            (shown,) = cursor.fetchone()
            return str(shown)

    usual = limit()
    with erasure.redacting():
        assert limit() == "1h"
    assert limit() == usual != "0"


def test_items_are_listed_by_index(as_kee: Caller) -> None:
    given: dict[str, Any] = {"author": as_kee.principal_id, "now": T0, "many": 500}
    for subject_id in (ALICE, *(f"USER:{number}" for number in range(20))):
        add(as_kee, subject_id)
        with connection.cursor() as cursor:
            cursor.execute(_MANY.replace(ALICE, subject_id), given)
    ground.analyzed("memory_item", "memory_subject")
    with CaptureQueriesContext(connection) as captured:
        selectors.items(Subject.objects.get(key=ALICE), now=T0, limit=50)
    with connection.cursor() as cursor:
        cursor.execute(f"explain {captured[-1]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "memory_item_standing" in plan
    assert "Sort" not in plan


# The registry.

# Columns that hold no words about subjects: names that deployments and workers choose for themselves, kinds, digests.
NO_WORDS = {
    "activation_target": {"kind", "state", "secret", "former_secret"},
    "digests_entry": {"kind", "source_system", "receipt_ids", "flush_reason"},
    "digests_sourcepolicy": {"source_system"},
    "digests_thread": {"source_system"},
    "executions_begunjob": {"worker_id", "cancel_tool"},
    "executions_execution": {
        "plan_id", "delegate_id", "plan_receipt_id", "mode", "strategy", "currency", "status", "halted_as",
        "terminal_receipt_id", "trace_ref",
    },
    "executions_executionstep": {"step_id", "step_type", "depends_on", "status", "receipt_id"},
    "handoff_handoff": {"kind", "priority"},
    "memory_commonword": {"term"},  # goes with the passages that make it common
    "memory_conceptname": {"key"},  # goes with its concept, among whose names it is
    "memory_item": {"type", "slot_key"},  # which goes with the row whose slot it is of
    "memory_posting": {"term"},  # goes with its passage
    "memory_session": {"overwritten"},  # keyed digests
    "memory_vector": {"embedding"},  # goes with its passage
    "plans_learnedmodel": {"state"},
    "plans_plan": {"plan_id", "status", "plan_hash", "planner_version", "receipt_id"},
    "plans_planstep": {"step_id", "step_type", "depends_on", "worker_id", "tool_name", "tool_uid"},
    "principals_principal": {"kind"},
    "principals_token": {"prefix", "scopes"},
    "receipts_letter": {"recipient_name", "state", "sent_as", "failure", "remote_receipt_id"},
    "receipts_receipt": {"surface", "flush_class"},
    "receipts_receiptkey": {"source_system"},
    "receipts_remotetarget": {"base_url", "door", "sealed_token", "breaker"},
    "tasks_artifact": {"digest", "media_type"},
    "tasks_budget": {"when_spent"},
    "tasks_dependency": {"if_it_fails"},
    "tasks_queueminute": {"status"},
    "tasks_run": {"outcome"},
    "tasks_schedule": {"cron", "timezone", "misfire"},
    "tasks_tasktype": {"misfire"},
    "tasks_terminalrecord": {"status", "reason", "receipt_id"},
    "workers_signingkey": {"ceiling"},
    "workers_toolversion": {"uid"},
    "workers_offer": {"recent_seconds"},
    "workers_worker": {"signed_digest", "claimed_tier", "effective_tier", "state", "reported", "reach"},
    "workers_workerevent": {"kind", "state"},
    "workers_workersource": {"kind", "sealed_secret"},
}  # fmt: skip


def test_every_column_that_can_hold_words_is_registered_or_known_to_hold_none() -> None:
    searched: dict[str, set[str]] = {}
    for place in erasure.all_places():
        rows = place if isinstance(place, Rows) else getattr(place, "rows", None)
        if rows is not None:
            searched.setdefault(rows.table, set()).update(column.strip('"') for column in rows.columns)
    worded = (models.CharField, models.TextField, models.JSONField, ArrayField)
    missing = {
        f"{model._meta.db_table}.{field.column}"
        for model in apps.get_models()
        if issubclass(model, TenantModel)
        for field in model._meta.concrete_fields
        if isinstance(field, worded)
        and field.column not in searched.get(model._meta.db_table, set()) | NO_WORDS.get(model._meta.db_table, set())
    }
    assert missing == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("USER:al", True),
        ('{"subject": "USER:al"}', True),
        ("of USER:al.", True),
        ("(USER:al)", True),
        ("USER:al, USER:bo", True),
        ("'USER:al'", True),
        ("USER:al's", True),
        ("USER:al!", True),
        ("USER:al...", True),
        ("USER:al: has a zebra", True),
        ('{"USER:al:": 1}', True),
        ("USER:al:", True),
        ("USER:al:home", False),
        ("USER:al.:home", False),
        ("USER:al::+", True),
        ("+USER:al", True),
        ("@USER:al", True),
        ("_USER:al_", True),
        ("__USER:al__", True),
        ("~~USER:al~~", True),
        ("USER:al-", True),
        ("USER:al -", True),
        ("USER:al%3A%20yes", True),
        ("mailto:USER:al", True),
        ("urn:USER:al", True),
        ("的USER:al\uff0c", True),
        ("USER:bo:USER:al", False),
        ("b:USER:al", False),
        ("MY_USER:al", False),
        ("x_USER:al", False),
        ("USER:al:2", False),
        ("USER:al_b", False),
        ("USER:al--b", False),
        ("USER:al%3Ab", False),
        (r'{"note": "Met:\nUSER:al"}', True),
        (r'{"note": "\u00e4USER:al"}', True),
        ("USER%3Aal", True),
        ("USER%3aal", True),
        ("/api/v1/subjects/USER%3Aal/items?slot=a", True),
        ("q=of%20USER:al%20and", True),
        ("q=%22USER%3Aal%22", True),
        ("q=USER%3Aal%E2%80%99s", True),
        ("q=of%2520USER%253Aal%2526and", True),
        ("q=USER%253Aal%25E2%2580%2599s", True),
        ("USER%253Aal%2540home", False),
        (r"USER:al\u002Bwork", False),
        ("USER%253Aal%25C3%25A9", False),
        ("USER%3Aal%40home", False),
        ("USER%3aal%2bwork", False),
        ("USER:al%C3%A9", False),
        ("SUPER%5FUSER%3Aal", False),
        ("a%40USER%3Aal", False),
        ("nUSER:al", False),
        ("USER:alice", False),
        ("USER:alé", False),
        ("SUPERUSER:al", False),
        ("USER:al+work", False),
        ("USER:al~2", False),
        ("X:a+USER:al", False),
        ("USER:al-2", False),
        ("USER:al.b", False),
        ("USER:al@home", False),
        ("user:al", False),
    ],
)
def test_a_reference_is_found_whole_by_python_and_by_the_database(db: None, text: str, found: bool) -> None:
    wanted = Wanted(tenant_id=1, reference="USER:al")
    with connection.cursor() as cursor:
        cursor.execute("select %s ~ %s", [text, wanted.of_reference])
        assert cursor.fetchone() == (found,)
    assert wanted.stands_in(text) is found


@pytest.mark.parametrize(
    "spelled",
    [
        "USER:Zoë+1@a",
        r"USER:Zo\u00eb+1@a",
        r"USER:Zo\u00EB+1@a",
        "USER:Zo%C3%AB+1@a",
        "USER:Zo%c3%ab+1@a",
        "USER:Zo%C3%AB%2B1@a",
        "USER%3AZo%C3%AB%2B1%40a",
        "USER%3aZo%c3%ab%2b1%40a",
        r"USER:Zo\u00EB\u002B1@a",
        r"USER:Zo\u00eb\u002b1@a",
        "USER%253AZo%25C3%25AB%252B1%2540a",
        "USER:Zo%C3%AB%2B1%40a",
    ],
)
def test_an_id_is_forgotten_however_it_is_spelled(as_kee: Caller, spelled: str) -> None:
    add(as_kee, "USER:Zoë+1@a")
    services.store_observation(author=as_kee, text=f"See https://example.org/{spelled}?a=1 {CANARY}", now=T0)
    services.store_observation(author=as_kee, text="stays", metadata={"of": f"{spelled}b"}, now=T0)
    post(as_kee, receipt_id=f"R/{spelled}")
    done = services.forget(author=as_kee, subject_id="USER:Zoë+1@a", now=T0)
    assert said_alone() == ["stays"]
    assert {"receipts_receipt", "receipts_receiptkey"} <= done.remaining.keys()


def said_alone() -> list[str]:
    return list(Observation.objects.exclude(text="").values_list("text", flat=True))


def test_no_sign_of_an_id_ends_a_reference_to_another() -> None:
    ids = TypeAdapter(SubjectId)
    wanted = Wanted(tenant_id=1, reference="USER:al")
    taken = set()
    for longer in (f"USER:al{chr(code)}{rest}" for code in range(128) for rest in ("x", "")):
        with suppress(ValidationError):
            taken.add(ids.validate_python(longer))
    assert {"USER:al+x", "USER:al~x", "USER:al.x", "USER:al-x", "USER:al@x", "USER:alx"} <= taken
    assert [longer for longer in sorted(taken) if wanted.stands_in(longer)] == []


def test_an_id_after_a_line_break_in_a_document_is_found(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    noted = {"note": f"Met:\n{ALICE} said {CANARY}"}
    with acting_as(kee):
        add(kee)
        add(kee, f"{ALICE}+work")
        services.store_observation(author=kee, text=f"x {CANARY}", metadata=noted, now=T0)
        services.store_observation(author=kee, text="stays", metadata={"of": f"{ALICE}+work"}, now=T0)
        post(kee, title=CANARY, summary=CANARY, metadata=noted)
    done = forget(kee)
    assert (traces(CANARY), done.remaining) == ({}, {})
    with acting_as(kee):
        assert list(Observation.objects.exclude(text="").values_list("text", flat=True)) == ["stays"]


@pytest.mark.parametrize(
    ("short", "text", "found"),
    [
        ("HIV", "Has HIV.", True),
        ("hiv", '{"said": "HIV"}', True),
        ("HIV", r'{"said": "Has:\nHIV"}', True),
        ("HIV", r'{"said": "\u00e4HIV"}', False),
        ("HIV", r'{"said": "\u201cHIV\u201d"}', True),
        ("HIV", "hive", False),
        ("HIV", "SHIV", False),
        ("HIV", "HIV2", False),
        ("tea", "instead", False),
        ("東京", "彼は東京に住む", True),
        ("HIV", "彼はHIVに", True),
        ("Кот", "Который час?", False),
        ("Кот", "Это КОТ.", True),  # noqa: RUF001  # Cyrillic it is
        ("José", "Married to Josée", False),
        ("Straße", "in der STRASSE", True),
        (r"\n", "anything", False),
        (r"\n\n\n\n\n\n", "anything", False),
        ("C++", "likes c++11", True),
        ("C++", "abc++", False),
        ("ä", json.dumps("Ä"), True),
        ("ä", json.dumps("ä"), True),
        ("(a|b)", "x (A|B) y", True),
    ],
)
def test_a_short_text_is_found_as_words_by_python_and_by_the_database(
    db: None, short: str, text: str, found: bool
) -> None:
    wanted = Wanted(tenant_id=1, reference="", texts=[short])
    with connection.cursor() as cursor:
        cursor.execute("create temporary table told as select 1 as id, 1 as tenant_id, %s as said", [text])
    assert Rows(table="told", columns=["said"]).numbers(wanted) == [1] * found
    assert wanted.stands_in(text) is found


@pytest.mark.parametrize("name", ["a.b*c", "a+(b)", "ä[ö]", 'q"uote', "{1}", "a|b", "^a$", "naïve—ß", "x\u200by"])
def test_any_name_is_found_as_it_is_and_in_json(db: None, name: str) -> None:
    wanted = Wanted(tenant_id=1, reference=f"USER:{name}", texts=[f"Text {name}, which tells"])
    document = {"subject": f"USER:{name}", "text": f"Text {name}, which tells"}
    with connection.cursor() as cursor:
        for text in (
            json.dumps(document),
            json.dumps(document, ensure_ascii=False),
            f"USER:{name} Text {name}, which tells",
        ):
            cursor.execute("select %s ~ %s", [text, wanted.of_reference])
            assert cursor.fetchone() == (True,)
            assert wanted.stands_in(text)
        cursor.execute("select %s ~ %s", ["USER:other", wanted.of_reference])
        assert cursor.fetchone() == (False,)
