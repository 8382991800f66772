"""Forgetting a subject or an item, export, and expiry."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core import erasure
from apps.digests.models import Entry
from apps.digests.selectors import read_inbox
from apps.executions import calls
from apps.executions.services import submit_step_result
from apps.memory import search, selectors, services, sql, vectors
from apps.memory.models import (
    EnvelopeLoaded,
    Memory,
    Revision,
    SearchTerm,
    Session,
    Subject,
    TermFrequency,
    Vector,
)
from apps.memory.shapes import ForgottenOutput
from apps.memory.tools import ExportSubject, export_subject
from apps.principals.models import Operator
from apps.principals.selectors import tenant_named
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.receipts.selectors import chain
from apps.tasks.models import Artifact, FinishedTask, Schedule, Task
from apps.tasks.services.queueing import set_schedule
from apps.tasks.shapes import ScheduleTask
from apps.workers import services as registry
from tests.digests.makers import post, post_grouped
from tests.executions import making as executions
from tests.factories import T0, at, make_caller, make_tenant, refused
from tests.memory.subjects import (
    ALICE,
    CANARY,
    DAY,
    TICK,
    add,
    change,
    concepts,
    envelope,
    facts,
    items,
    observations,
    observe,
    patterns,
    plant,
    record,
    remember,
    revise,
    talk,
)
from tests.tasks import making as tasks
from tests.waiters import Other, acting, at_once, until_somebody_waits_for_this_transaction
from tests.workers.factories import NOTHING, make_manifest

pytestmark = pytest.mark.usefixtures("own_artifacts", "transactional_db")

BOB = "USER:bob"


def forget(author: Caller, subject_id: str = ALICE, **given: Any) -> ForgottenOutput:
    with acting_as(author):
        return services.forget(author=author, subject_id=subject_id, now=T0, **given)


def observed() -> list[str]:
    return list(observations().exclude(text="").order_by("pk").values_list("text", flat=True))


# A subject.


def test_subject_goes_with_its_rows_and_their_index(as_kee: Caller) -> None:
    for subject_id in (ALICE, BOB):
        add(as_kee, subject_id, display_name=CANARY)
        remember(as_kee, f"Lives in {subject_id[5:]}", subject_id)
        record(as_kee, subject_id, conversation_id=subject_id[5:])
        talk(as_kee, f"I am {subject_id[5:]}", conversation_id=subject_id[5:])
        envelope(as_kee, subject_id)
    alice = Subject.objects.get(key=ALICE).pk

    done = services.forget(author=as_kee, subject_id=ALICE, now=T0)

    assert (done.erased["memory_memory"], done.erased["memory_session"], done.remaining) == (2, 1, {})
    assert list(Subject.objects.values_list("key", flat=True)) == [BOB]
    assert [item.text for item in items().all()] == ["Lives in bob"]
    assert observed() == ["I am bob"]
    for model in (Memory, SearchTerm, Vector, EnvelopeLoaded):
        assert not model.objects.filter(**{"subject" if model is EnvelopeLoaded else "scope": alice}).exists()
    assert list(Session.objects.values_list("conversation_id", flat=True)) == ["bob"]
    assert selectors.recall("alice", caller=as_kee) == []
    assert facts(as_kee, BOB) == ["Lives in bob"]
    asked: list[Callable[[], object]] = [
        lambda: envelope(as_kee),
        lambda: selectors.subject_of(ALICE, viewer=as_kee),
        lambda: remember(as_kee),
        lambda: change(as_kee, display_name="Al"),
    ]
    for ask in asked:
        with refused("unknown_subject"), transaction.atomic():
            ask()


def test_rows_of_every_room_that_name_it_by_key_lose_their_texts() -> None:
    kee = plant()
    with acting_as(kee):
        before = Receipt.objects.count()

    done = forget(kee)

    assert done.remaining == {}
    with acting_as(kee):
        assert not patterns().exists()
        assert not concepts().filter(key=CANARY).exists()
        assert observed() == []
        assert not Artifact.objects.exists()
        assert CANARY not in str(list(Task.objects.values_list("params", flat=True)))
        assert CANARY not in str(list(FinishedTask.objects.values_list("content", "summary")))
        assert Receipt.objects.count() == before + 1
        redacted = Receipt.objects.exclude(redacted_at=None)
        assert {(row.title, row.summary, str(row.metadata)) for row in redacted} == {(None, "", "{}")}
        for row in redacted:
            chain(row.receipt_id)
        for entry in read_inbox(kee.principal_id).entries:
            assert CANARY not in f"{entry.title} {entry.summary}"


def test_other_tenants_keep_a_subject_of_the_same_id(kee: Caller) -> None:
    lee = plant("globex")
    with acting_as(kee):
        add(kee)
    forget(kee)
    with acting_as(lee):
        assert facts(lee) == [f"Moved to {CANARY}"]
        assert concepts().filter(name=CANARY).exists()


def test_forgotten_subject_is_added_anew(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "Has a zebra")
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    with refused("unknown_subject"), transaction.atomic():
        remember(as_kee, "Has a zebra")
    add(as_kee)
    assert remember(as_kee, "Has a zebra").outcome == services.Outcome.STORED


def test_receipt_proves_it_and_says_nothing_of_what(as_kee: Caller) -> None:
    add(as_kee, display_name=CANARY)
    done = services.forget(author=as_kee, subject_id=ALICE, now=T0)
    receipt = Receipt.objects.get(receipt_id=done.receipt_id)
    assert (receipt.event_type, receipt.surface) == ("memory_forgotten", "ledger")
    assert (receipt.metadata["erased"], receipt.metadata["remaining"]) == (done.erased, done.remaining)
    assert receipt.metadata["proof"] == done.proof == selectors.proof_of(ALICE).hex()
    assert not {CANARY, "alice"} & {word for word in (CANARY, "alice") if word in str(receipt.__dict__)}


def test_ids_that_clients_chose_stay_and_are_counted(as_kee: Caller) -> None:
    add(as_kee)
    post(as_kee, receipt_id=ALICE)
    done = services.forget(author=as_kee, subject_id=ALICE, now=T0)
    assert {"receipts_receipt", "receipts_receiptkey"} <= done.remaining.keys()


def test_other_subjects_lose_what_names_it_by_key(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, BOB, preferences={"friend": ALICE, "tea": "green"}, domains=[ALICE, "zoo"], display_name="Bob")
    remember(as_kee, "Knows her", BOB, source=ALICE)
    kept = remember(as_kee, f"Has heard of {ALICE}", BOB).item
    before = Subject.objects.get(key=BOB).rev

    services.forget(author=as_kee, subject_id=ALICE, now=T0)

    bob = Subject.objects.get()
    assert (bob.preferences, bob.domains, bob.display_name) == ({"tea": "green"}, ["zoo"], "Bob")
    assert bob.rev > before
    assert list(items().all()) == [kept]


def test_log_of_operators_loses_the_name(as_kee: Caller) -> None:
    with acting_as_system("test"):
        olga = Operator.objects.create_user(username="olga", password="x", is_staff=True)
        for thing in (add(as_kee), make_tenant("globex")):
            kind = ContentType.objects.get_for_model(thing)
            LogEntry.objects.create(
                user=olga, content_type=kind, object_id=str(thing.pk), object_repr=ALICE, action_flag=CHANGE
            )
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    with acting_as_system("test"):
        assert list(LogEntry.objects.order_by("pk").values_list("object_repr", flat=True)) == ["", ALICE]


def kept_files() -> list[bool]:
    """For each artifact that was written in the test or has a row: whether both are there."""
    with acting_as_system("test"):
        rows = {artifact.digest for artifact in Artifact.objects.all()}
    files = {file.name for file in Path(storages["artifacts"].path("")).rglob("*") if file.is_file()}
    return [digest in rows and digest in files for digest in rows | files]


def test_file_goes_with_the_last_result_that_names_it_after_the_commit(kee: Caller) -> None:
    tasks.make_type(kee)
    for subject_id in (ALICE, BOB):
        with acting_as(kee):
            add(kee, subject_id)
        tasks.queue(kee, params={"of": subject_id})
        tasks.complete(kee, tasks.lease_one(kee), content="x" * 70_000)
    forget(kee)
    assert kept_files() == [True]
    with acting_as(kee):
        services.forget(author=kee, subject_id=BOB, now=T0)
        transaction.set_rollback(True)
    assert kept_files() == [True]
    forget(kee, BOB)
    assert kept_files() == []


def test_execution_goes_with_its_files_and_receipts(kee: Caller) -> None:
    make = executions.queue_step("make", worker_id="code-analyzer", tool_name="analyze_repository")
    make["params"] = {"repo_path": "/x"}
    combine = {"step_id": "sum", "step_type": "aggregate", "aggregate_step_ids": ["make"], "executor": "principal"}
    combine["synthesis_instructions"] = "Sum up"
    asks = {**executions.REPORT, "decision_required": True, "depends_on": ["sum"]}
    with acting_as(kee):
        add(kee)
        registry.register(caller=kee, original=make_manifest("code-analyzer", trust={}, side_effects=NOTHING))
        plan_id = executions.make_plan(kee, [make, combine, asks], ALICE)
    execution = executions.run(kee, [], plan_id=plan_id)
    executions.do_task(kee, {"said": "x" * 70_000})
    executions.advance(execution)
    given = {"result": CANARY, "result_pointer": calls.keep(caller=kee, value=CANARY), "summary": CANARY}
    with acting_as(kee):
        submit_step_result(caller=kee, execution_ref=execution.ref, step_id="sum", **given)
    executions.advance(execution)
    assert kept_files() == [True, True]
    forget(kee)
    assert kept_files() == []
    with acting_as(kee):
        said = str(list(Receipt.objects.values_list("title", "summary", "metadata")))
    assert [word for word in (ALICE, CANARY, "Decide", "Plan submitted") if word in said] == []


def test_schedule_without_its_params_is_stopped(as_kee: Caller) -> None:
    add(as_kee)
    tasks.make_type(as_kee)
    for of in (ALICE, BOB):
        draft = ScheduleTask(name=of[5:], task_type="index", params={"of": of}, every_seconds=60)
        set_schedule(caller=as_kee, draft=draft)
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    assert list(Schedule.objects.filter(next_at=None).values_list("name", flat=True)) == ["alice"]


def test_digest_loses_what_it_quotes_of_a_redacted_receipt(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
        post_grouped(kee, "pr:1", title="a zebra", metadata={"subject_id": ALICE}, flush_class="immediate")
    forget(kee)
    with acting_as(kee):
        post_grouped(kee, "pr:1", title="a lion", flush_class="immediate")
    forget(kee, BOB)
    with acting_as(kee):
        first, second = Entry.objects.order_by("pk").values_list("summary", flat=True)
        assert (first, "lion" in str(second)) == ("", True)


# Provenance.


def test_what_rests_on_forgotten_rows_alone_goes_too(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, BOB)
    item = remember(as_kee).item.ref
    record(as_kee)
    message = talk(as_kee, "I like fettuccini")
    other = observe(as_kee, "It rains")
    derived = observe(as_kee, "Likes pasta", evidence=[item])

    def pattern(name: str, *evidence: Memory) -> Memory:
        return revise(as_kee, name, pattern_name=name, evidence_observation_ids=[one.pk for one in evidence])

    pattern("of the message", message)
    pattern("of what was derived", derived)
    pattern("revised since", message)
    revised = pattern("revised since", other)
    both = pattern("of both", message, other)
    bobs = remember(as_kee, "Eats with her", BOB, evidence=[item, "https://example.org"]).item

    done = services.forget(author=as_kee, subject_id=ALICE, now=T0)

    assert observed() == ["It rains"]
    assert {one.name: one.evidence for one in patterns().all()} == {
        "of both": [other.ref],
        "revised since": [other.ref],
    }
    assert not Revision.objects.filter(memory=revised).exists()
    assert items().get(pk=bobs.pk).evidence == ["https://example.org"]
    assert patterns().get(pk=both.pk).text == "of both"
    assert done.erased["memory_memory"] == 5
    assert Memory.objects.count() == 4


def test_free_text_stays_and_an_operator_finds_and_redacts_it(kee: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"Met {ALICE} in the zoo"
    with acting_as(kee):
        add(kee)
        seen = observe(kee, said)
        posted = Receipt.objects.get(receipt_id=post(kee, title=said).receipt_id)
    forget(kee)

    call_command("find_text", "acme", "met user:ALICE")
    found = capsys.readouterr().out
    assert f"memory_memory:{seen.pk}" in found
    assert f"receipts_receipt:{posted.pk}" in found

    for row in (f"memory_memory:{seen.pk}", f"receipts_receipt:{posted.pk}"):
        call_command("redact_row", "acme", row)
    with pytest.raises(CommandError, match="Give table:number"):
        call_command("redact_row", "acme", f"receipts_receipt:{10**20}")
    with acting_as(kee):
        assert (observed(), Receipt.objects.get(pk=posted.pk).title) == ([], None)
        assert selectors.recall("zoo", caller=kee) == []
    capsys.readouterr()
    call_command("find_text", "acme", "in the zoo")
    assert "receipts_receipt" not in capsys.readouterr().out


# An item.


def test_item_goes_with_what_says_the_same_and_what_it_superseded(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, BOB)
    remember(as_kee, "Lives in Berlin", slot="home")
    remember(as_kee, "lives  in BERLIN.", type="SHARED_NARRATIVE")
    last = remember(as_kee, "Lives in Paris", slot="home", now=T0 + DAY).item
    remember(as_kee, "Loves fettuccini")
    remember(as_kee, "Lives in Paris", BOB)
    before = Subject.objects.get(key=ALICE).rev

    done = services.forget(author=as_kee, subject_id=ALICE, item=last.pk, now=T0)

    assert sorted(items().values_list("text", flat=True)) == ["Lives in Paris", "Loves fettuccini"]
    assert Memory.objects.count() == 2
    assert (set(done.erased), done.proof) == ({"memory_memory"}, selectors.proof_of(ALICE, item=last.pk).hex())
    assert Subject.objects.get(key=ALICE).rev > before
    assert remember(as_kee, "Lives in Berlin").outcome == services.Outcome.STORED
    with refused("unknown_memory"), transaction.atomic():
        services.forget(author=as_kee, subject_id=ALICE, item=last.pk, now=T0)


def test_item_goes_with_the_messages_that_it_cites(as_kee: Caller) -> None:
    add(as_kee)
    record(as_kee)
    cited, _ = talk(as_kee, "I have a zebra"), talk(as_kee, "What else?")
    elsewhere = observe(as_kee, "Zebras exist")
    item = remember(as_kee, "Has a zebra", evidence=[cited.ref, elsewhere.ref]).item
    observe(as_kee, "Owns an animal", evidence=[item.ref])
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    assert observed() == ["What else?", "Zebras exist"]


def test_item_superseded_by_a_forgotten_one_stays_superseded(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, BOB)
    remember(as_kee, "Lives in Paris", BOB, slot="home", valid_from=T0 - 9 * DAY)
    remember(as_kee, "Lives with her", BOB, slot="home", source=ALICE, valid_from=T0 - 9 * DAY, now=T0 + DAY)
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    left = items().get()
    assert (left.text, left.superseded_at, left.superseded_by) == ("Lives in Paris", T0 + DAY, None)


# Cost, and the search index.


def test_counted_terms_of_a_subject_go_with_it(as_kee: Caller) -> None:
    add(as_kee)
    for number in range(30):
        observe(as_kee, f"else {number}")
    for text in ("quokka", "a quokka"):
        talk(as_kee, text)
    search.fold_totals()
    assert search.count_frequencies(common=1) > 0
    # Counted before the conversation had a subject.
    record(as_kee)
    search.fold_totals()
    search.count_frequencies(common=1)
    assert "quokka" in TermFrequency.objects.values_list("term", flat=True)
    services.forget(author=as_kee, subject_id=ALICE, now=T0)
    assert "quokka" not in TermFrequency.objects.values_list("term", flat=True)


def test_much_is_forgotten_in_as_many_statements_as_little(as_kee: Caller) -> None:
    statements = []
    for many in (2, 20):
        add(as_kee)
        for number in range(many):
            remember(as_kee, f"fact {number}")
        with CaptureQueriesContext(connection) as captured:
            services.forget(author=as_kee, subject_id=ALICE, now=T0)
        statements.append(len(captured))
    assert statements[1] <= statements[0]


# At the same time as others.


def test_subjects_that_name_each_other_are_forgotten_at_once(kee: Caller) -> None:
    names = [f"USER:{number}" for number in range(6)]
    with acting_as(kee):
        for name in names:
            add(kee, name)
        for name, other in zip(names, [*names[1:], names[0]], strict=True):
            remember(kee, "knows", name, source=other)
            record(kee, name, conversation_id=f"of {name}", topics=[other])
            talk(kee, "met", conversation_id=f"of {name}", metadata={"whom": other})
            services.store_concept(author=kee, name=f"friends of {name}", metadata={"are": [other]}, now=T0)
    done = at_once(*(partial(forget, kee, name) for name in names))
    assert [type(one) for one in done] == [ForgottenOutput] * len(names)
    with acting_as(kee):
        assert (observed(), Subject.objects.exists(), items().exists()) == ([], False, False)


def test_conversation_that_gets_the_subject_meanwhile_goes_too(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        talk(kee, "Hello.")

    with acting_as(kee):
        record(kee)
        # One waits for the subject, the other for the conversation and then for the subject.
        forgetting = Other(lambda: forget(kee))
        until_somebody_waits_for_this_transaction()
        speaking = Other(acting(kee, lambda: talk(kee, "Anybody there?")))
        until_somebody_waits_for_this_transaction(2)
    assert (forgetting.ends(), speaking.ends()) == (None, None)
    with acting_as(kee):
        assert (Subject.objects.exists(), Session.objects.filter(subject__isnull=False).exists()) == (False, False)
        assert "Hello." not in observed()


@pytest.mark.parametrize("item", [None, 1])
def test_stranger_to_a_subject_does_not_wait_for_it(kee: Caller, item: int | None) -> None:
    with acting_as(kee):
        add(kee, share_with=[kee.name])
    with acting_as_system("test"):
        lee = make_caller(tenant_named(kee.tenant_slug), "Lee")
    with acting_as(kee):
        assert services.holding(Subject.objects.filter(key=ALICE)).first()
        sql.await_turn(kee.tenant_id)
        assert getattr(Other(lambda: forget(lee, item=item)).ends(), "code", None) == "unknown_subject"


@pytest.mark.parametrize("of_item", [True, False])
def test_vectors_written_meanwhile_go_too(kee: Caller, of_item: bool) -> None:
    with acting_as(kee):
        add(kee)
        item = remember(kee, "Has a zebra").item.pk
    with acting_as_system("what memories mean"):
        texts = vectors.unembedded(7, limit=10)
        assert vectors.keep_vectors(7, texts, dict.fromkeys(texts, "[0.6,0.8]")) == 1
        rival = Other(lambda: forget(kee, item=item if of_item else None))
        until_somebody_waits_for_this_transaction()
    assert rival.ends() is None
    with acting_as(kee):
        assert (Memory.objects.count(), Vector.objects.count()) == (0, 0)


# Export.


def test_export_holds_all_rows_of_a_subject(as_kee: Caller) -> None:
    add(as_kee, display_name=f"{CANARY} 1", preferences={f"{CANARY} 2": f"{CANARY} 3"}, domains=[f"{CANARY} 4"])
    remember(as_kee, f"{CANARY} 5", slot=f"{CANARY} 6", source=f"{CANARY} 7")
    remember(as_kee, f"{CANARY} 8", slot=f"{CANARY} 6")
    record(as_kee, title=f"{CANARY} 9", topics=[f"{CANARY} 10"])
    talk(as_kee, f"{CANARY} 11", speaker=f"{CANARY} 12", metadata={"said": f"{CANARY} 13"}, domain=f"{CANARY} 14")
    talk(as_kee, "of nobody", conversation_id="of nobody")
    exported = selectors.export(Subject.objects.get(), now=T0).model_dump_json()
    assert [number for number in range(1, 15) if f'"{CANARY} {number}"' not in exported] == []
    assert "of nobody" not in exported


def test_export_pages_one_list_after_the_other(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.selectors.AT_ONCE", 2)
    add(as_kee)
    for number in range(5):
        remember(as_kee, f"fact {number}")
        named = f"c{number}"
        record(as_kee, conversation_id=named)
        talk(as_kee, f"message {number}", conversation_id=named)
        envelope(as_kee)

    told: dict[str, list[Any]] = {"items": [], "sessions": [], "envelopes_loaded": [], "messages": []}
    cursor = None
    while True:
        page = export_subject(as_kee, ExportSubject(subject_id=ALICE, cursor=cursor))
        assert bool(page.subject) == (cursor is None)
        assert page.next is None or sum(len(getattr(page, name)) for name in told) == 2
        for name in told:
            told[name] += getattr(page, name)
        if page.messages:
            # The next page continues after a message that was forgotten meanwhile.
            with acting_as_system("test"), erasure.redacting():
                services.forget_memories([page.messages[-1]["id"]])
        if (cursor := page.next) is None:
            break

    assert [one["text"] for one in told["items"]] == [f"fact {number}" for number in range(5)]
    assert [one["conversation_id"] for one in told["sessions"]] == [f"c{number}" for number in range(5)]
    assert [one["text"] for one in told["messages"]] == [f"message {number}" for number in range(5)]
    assert len({one["id"] for one in told["envelopes_loaded"]}) == 5


# Expiry.


def test_expired_data_is_not_exported_before_it_is_deleted(as_kee: Caller) -> None:
    subject = add(as_kee, delete_after_days=2)
    remember(as_kee)
    record(as_kee)
    talk(as_kee, "Hello.")

    def parts(now: datetime) -> list[int]:
        found = selectors.export(subject, now=now)
        return [len(rows) for rows in (found.items, found.sessions, found.messages)]

    assert [parts(T0 + 2 * DAY - TICK), parts(T0 + 2 * DAY)] == [[1, 1, 1], [0, 0, 0]]
    record(as_kee, None, tone="dry", now=T0 + DAY)
    assert [parts(now) for now in (T0 + 2 * DAY, T0 + 3 * DAY)] == [[0, 1, 0], [0, 0, 0]]


def test_sweep_deletes_what_is_older_than_the_subject_allows(as_kee: Caller) -> None:
    add(as_kee, delete_after_days=2)
    add(as_kee, BOB)
    # Said before the session had its subject.
    talk(as_kee, "day 0", conversation_id=ALICE)
    for subject_id in (ALICE, BOB):
        remember(as_kee, "old", subject_id)
        remember(as_kee, "new", subject_id, now=T0 + DAY)
        record(as_kee, subject_id, conversation_id=subject_id)
        record(as_kee, subject_id, conversation_id=f"other {subject_id}")
    for day in range(1, 4):
        talk(as_kee, f"day {day}", conversation_id=ALICE, now=T0 + day * DAY)
    talk(as_kee, "of bob", conversation_id=BOB)
    revisions = dict(Subject.objects.values_list("key", "rev"))

    for moment, said, remembered in (
        (T0 + 2 * DAY - TICK, ["day 0", "day 1", "day 2", "day 3"], ["new", "old"]),
        (T0 + 2 * DAY, ["day 1", "day 2", "day 3"], ["new"]),
        (T0 + 4 * DAY, ["day 3"], []),
        (T0 + 5 * DAY, [], []),
    ):
        at(moment)
        services.forget_expired()
        assert observed() == [*said, "of bob"]
        assert sorted(items().filter(subject__key=ALICE).values_list("text", flat=True)) == remembered
    assert services.forget_expired() == 0
    assert sorted(items().values_list("text", flat=True)) == ["new", "old"]
    assert set(Session.objects.values_list("subject__key", flat=True)) == {BOB}
    after = dict(Subject.objects.values_list("key", "rev"))
    assert (after[ALICE] > revisions[ALICE], after[BOB]) == (True, revisions[BOB])


def test_changed_days_apply_to_stored_items(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee)
    at(T0 + 100 * DAY)
    assert services.forget_expired() == 0
    for days, left in ((200, 1), (101, 1), (None, 1), (100, 0)):
        change(as_kee, delete_after_days=days, now=T0 + 100 * DAY)
        services.forget_expired()
        assert items().count() == left
    assert Subject.objects.get().expires_at is None


def test_sweep_deletes_in_parts(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.memory.services._AT_ONCE", 2)
    add(as_kee, delete_after_days=2)
    record(as_kee)
    for number in range(5):
        talk(as_kee, f"message {number}")
        remember(as_kee, f"item {number}")
    talk(as_kee, "new", now=T0 + DAY)
    at(T0 + 2 * DAY)
    assert services.forget_expired() == 1
    assert (observed(), items().count()) == (["new"], 0)
