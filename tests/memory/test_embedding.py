"""Recall with an embedder: what it adds, when it is asked, and that its failures harm nothing."""

import math
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.console import health
from apps.core import ticks
from apps.memory import services
from apps.memory.models import Memory, Vector
from apps.memory.selectors import recall
from apps.memory.shapes import RecalledMemory
from apps.memory.vectors import NotEmbedded, embed_memories, meaning_of
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from benchmarks.data import read_conversations
from benchmarks.suites.recall import measure
from tests.factories import T0, make_caller, make_tenant
from tests.memory.meanings import (
    DIMENSIONS,
    answers,
    by_chance,
    by_words,
    endpoint,
    entry,
    named,
    refusing,
    said,
)
from tests.memory.subjects import ALICE, add, observe, record, remember, revise, talk
from tests.memory.test_recall import CONVERSATIONS
from tests.remote import Behaviour, Remote, drips, floods, hangs, hangs_up, says, serving

SOON = timedelta(seconds=0.5)
LONG = timedelta(seconds=20)


@pytest.fixture
def kee(transactional_db: None) -> Caller:
    return make_caller(make_tenant("acme"))


@pytest.fixture
def embedder(settings: Any) -> Iterator[Remote]:
    with endpoint(settings) as remote:
        yield remote


def tell(author: Caller, *texts: str) -> None:
    with acting_as(author):
        for text in texts:
            observe(author, text)


def ask(caller: Caller, query: str, *, patience: timedelta = LONG, **narrowed: Any) -> list[RecalledMemory]:
    meant = meaning_of(query, patience=patience)
    with acting_as(caller):
        return recall(query, caller=caller, meant=meant, **narrowed)


def held() -> dict[int, int]:
    """Which embedder has told of which passage."""
    with acting_as_system("test"):
        return dict(Vector.objects.values_list("memory_id", "embedder"))


# What is asked, and what is believed.


def test_embedder_is_asked_in_the_openai_form() -> None:
    with serving(answers()) as remote:
        found = named(f"{remote.url}/v1/embeddings").embed(["a car", "a physician"], patience=LONG)
    (received,) = remote.received
    assert received.path == "/v1/embeddings"
    assert received.json == {"model": "of-our-own", "input": ["a car", "a physician"]}
    for vector, text in zip(found, ("a car", "a physician"), strict=True):
        wanted = by_words(text)
        length = math.sqrt(sum(number * number for number in wanted))
        assert vector.tolist() == pytest.approx([number / length for number in wanted], abs=1e-6)


GOOD = [1.0] * DIMENSIONS


@pytest.mark.parametrize(
    "behaviour",
    [
        said(entry(0, GOOD)),
        said(entry(0, GOOD), entry(1, GOOD), entry(2, GOOD)),
        said(entry(0, GOOD), entry(0, GOOD)),
        said(entry(0, GOOD), entry("1", GOOD)),
        said(entry(0, GOOD), entry(1, GOOD[1:])),
        said(entry(0, GOOD), entry(1, "AAAA")),
        said(entry(0, GOOD), entry(1, [True] * DIMENSIONS)),
        said(entry(0, GOOD), entry(1, [0.0] * DIMENSIONS)),
        said(entry(0, GOOD), entry(1, [10**400] * DIMENSIONS)),
        said(entry(0, GOOD), entry(1, [None] * DIMENSIONS)),
        says(200, b'{"data": [{"index": 0, "embedding": [NaN]}]}'),
        says(200, b"[" * 100_000),
        says(200, b"\xff"),
        says(500, {"error": "down"}),
        says(301, b"", Location="http://169.254.169.254/"),
        hangs,
        hangs_up,
        drips,
        floods,
    ],
)
def test_answer_without_one_vector_for_each_text_is_refused(behaviour: Behaviour) -> None:
    with serving(behaviour) as remote, pytest.raises(NotEmbedded) as failure:
        named(remote.url).embed(["zanzibar", "quokka"], patience=SOON)
    assert "zanzibar" not in str(failure.value)
    assert not failure.value.refused


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://10.0.0.1/", "ftp://example.com/", "x"])
def test_embedder_is_called_only_at_allowed_addresses(url: str) -> None:
    with pytest.raises(NotEmbedded):
        named(url).embed(["one"], patience=SOON)


# What it is good for.


def test_synonym_is_found_by_vectors_in_one_statement(kee: Caller, settings: Any) -> None:
    tell(kee, "She sold the automobile.", "The physician came late.", "Nothing happened at all.", "Rain fell again.")
    assert ticks.run("memory.embed_memories")
    assert (held(), meaning_of("automobile")) == ({}, None)
    with endpoint(settings):
        assert ask(kee, "What about her vehicle?") == []
        assert ticks.run("memory.embed_memories")
        (hit, *_) = ask(kee, "What about her vehicle?")
        assert (hit.text, hit.why) == ("She sold the automobile.", "means much the same, says the embedder")
        meant = meaning_of("vehicle", patience=LONG)
    assert meant is not None
    with acting_as(kee), CaptureQueriesContext(connection) as captured:
        assert recall("vehicle", caller=kee, meant=meant)
    assert len(captured) == 1


def test_narrowed_question_compares_what_fits(kee: Caller, embedder: Remote) -> None:
    with acting_as(kee):
        for number in range(120):
            observe(kee, f"The automobile number {number} was sold.", domain="other")
        observe(kee, "A physician drove the automobile.", domain="wanted", metadata={"plan": {"id": "p"}})
        observe(kee, "It rains.", domain="wanted")
    ticks.run("memory.embed_memories")
    for narrowed in ({"domain": "wanted"}, {"filters": {"plan.id": "p"}}):
        (hit, *_) = ask(kee, "vehicle", **narrowed)
        assert hit.text == "A physician drove the automobile."
    assert ask(kee, "vehicle", as_of=T0 - timedelta(days=1)) == []


def test_superseded_memories_hide_nothing_alike(kee: Caller, embedder: Remote) -> None:
    with acting_as(kee):
        last = observe(kee, "An automobile.")
        for _ in range(110):
            last = observe(kee, "An automobile.", supersedes=last.ref)
        observe(kee, "A physician drove that automobile.", supersedes=last.ref)
        for number in range(200):
            observe(kee, f"Rain number {number} fell.")
    ticks.run("memory.embed_memories")
    assert [hit.text for hit in ask(kee, "vehicle")] == ["A physician drove that automobile."]


def test_vectors_are_compared_within_one_tenant_and_subject(kee: Caller, embedder: Remote) -> None:
    stranger = make_caller(make_tenant("globex"))
    tell(stranger, "The secret automobile.")
    with acting_as(kee):
        add(kee)
        remember(kee, "Drives an automobile")
        remember(kee, "Likes rain")
    tell(kee, "The public automobile.", "It rains.")
    ticks.run("memory.embed_memories")
    assert [hit.text for hit in ask(kee, "vehicle")][:1] == ["The public automobile."]
    assert not re.search("secret|Drives", str(ask(kee, "vehicle", limit=500)))
    assert [hit.text for hit in ask(kee, "vehicle", subject_id=ALICE)][:1] == ["Drives an automobile"]
    with acting_as(kee):
        assert set(Vector.objects.values_list("tenant_id", flat=True)) == {kee.tenant_id}


# Quality.


@pytest.mark.ci
def test_bad_embedder_takes_nearly_no_hits_away(transactional_db: None, settings: Any) -> None:
    conversations = read_conversations(CONVERSATIONS)
    without = measure(conversations, prefix="without")
    for embed in (by_chance, by_words):
        with endpoint(settings, answers(embed)):
            found = measure(conversations, prefix=embed.__name__.replace("_", "-"))
        assert min(found.shares["messages", k] - without.shares["messages", k] for k in (5, 10)) >= -1.5


# When it is told what.


def test_revised_memory_is_embedded_anew(kee: Caller, embedder: Remote) -> None:
    def read(text: str) -> None:
        with acting_as(kee):
            revise(kee, text)

    tell(kee, "It rains.", "Nothing happened.")
    read("Comes by automobile.")
    ticks.run("memory.embed_memories")
    assert ask(kee, "vehicle")[0].text == "builds: Comes by automobile."
    read("Comes on foot.")
    assert "foot" not in str(ask(kee, "vehicle"))
    ticks.run("memory.embed_memories")
    assert "foot" not in str([hit.text for hit in ask(kee, "vehicle")][:1])
    with acting_as_system("test"):
        assert Vector.objects.count() == Memory.objects.count() == 3


def test_memories_revised_or_forgotten_meanwhile_get_no_stale_vector(kee: Caller, settings: Any) -> None:
    def describe(text: str) -> None:
        with acting_as(kee):
            services.store_concept(author=kee, name="walrus", description=text, now=T0)

    def changing(exchange: Any) -> None:
        connection.close()
        describe("A physician.")
        with acting_as(kee):
            services.forget(author=kee, subject_id=ALICE, now=T0)
        connection.close()
        answers()(exchange)

    describe("An automobile.")
    with acting_as(kee):
        add(kee)
        remember(kee, "Drives")
    with endpoint(settings) as remote:
        remote.script.append(changing)
        ticks.run("memory.embed_memories")
        ticks.run("memory.embed_memories")
        told = [text for received in remote.received for text in received.json["input"]]
    assert [text.split()[-1] for text in told] == ["automobile.", "Drives", "physician."]
    assert len(held()) == 1
    with acting_as_system("test"):
        assert Memory.objects.filter(embedder=None).count() == 0


def test_forgotten_memories_lose_their_vectors(kee: Caller, embedder: Remote) -> None:
    with acting_as(kee):
        add(kee)
        item = remember(kee, "Drives an automobile").item
        remember(kee, "Likes rain")
        record(kee)
        talk(kee, "I drive")
    ticks.run("memory.embed_memories")
    assert len(held()) == 3
    for of_item, left in ((item.pk, 2), (None, 0)):
        with acting_as(kee):
            services.forget(author=kee, subject_id=ALICE, item=of_item, now=T0)
        assert len(held()) == left


def test_another_model_embeds_everything_anew(kee: Caller, embedder: Remote, settings: Any) -> None:
    tell(kee, "She sold the automobile.", "It rains.")
    ticks.run("memory.embed_memories")
    before = held()
    settings.EMBEDDER_MODEL = "another"
    ticks.run("memory.embed_memories")
    assert held().keys() == before.keys()
    assert set(held().values()).isdisjoint(before.values())
    ticks.run("memory.embed_memories")
    assert len(embedder.received) == 2


# When it fails.


@pytest.mark.parametrize("behaviour", [says(500), says(200, {}), said(entry(0, [1.0])), hangs, hangs_up, floods])
def test_failing_embedder_fails_neither_write_nor_recall(kee: Caller, settings: Any, behaviour: Behaviour) -> None:
    with endpoint(settings, behaviour) as remote:
        tell(kee, "She sold the automobile.")
        patience = SOON if behaviour is hangs else LONG
        assert [hit.text for hit in ask(kee, "automobile", patience=patience)] == ["She sold the automobile."]
        # Nobody waits for it a second time.
        assert [hit.text for hit in ask(kee, "automobile", patience=patience)] == ["She sold the automobile."]
        assert len(remote.received) == 1


@pytest.mark.parametrize(
    ("behaviour", "calls"),
    [
        # The whole, and the plain word.
        *((says(status), 2) for status in (400, 401, 404, 413, 422, 500, 503)),
        *((behaviour, 2) for behaviour in (says(200, {}), said(entry(0, [1.0])), hangs_up, floods)),
        # It concerns no text.
        (says(429), 1),
    ],
)
def test_texts_wait_while_the_embedder_fails_at_everything(
    kee: Caller, settings: Any, behaviour: Behaviour, calls: int
) -> None:
    tell(kee, *(f"memory {number}" for number in range(9)))
    with endpoint(settings, behaviour) as remote:
        ticks.run("memory.embed_memories")
        assert len(remote.received) == calls
        assert found_of_embedder().says == "9 memories wait for it"
    with endpoint(settings):
        ticks.run("memory.embed_memories")
    assert len(held()) == 9


def test_embedder_that_begins_to_refuse_everything_marks_nothing(kee: Caller, settings: Any) -> None:
    tell(kee, "unspeakable", *(f"memory {number}" for number in range(8)))
    with endpoint(settings, says(400)) as remote:
        # The whole, the plain word, the first text, the plain word, the second text; then all is refused.
        remote.script.extend([says(400), answers(), says(400), answers(), answers()])
        ticks.run("memory.embed_memories")
        assert held() == {}
        assert found_of_embedder().says == "9 memories wait for it"


@pytest.mark.parametrize(
    "refusal",
    [says(400), says(404), says(500), says(503), said(entry(0, [None] * DIMENSIONS)), hangs_up],
    ids=["400", "404", "500", "503", "no vector", "hangs up"],
)
def test_texts_that_the_embedder_fails_at_keep_no_other_waiting(
    kee: Caller, settings: Any, monkeypatch: pytest.MonkeyPatch, refusal: Behaviour
) -> None:
    monkeypatch.setattr("apps.memory.vectors._AT_ONCE", 4)
    tell(kee, *(f"unspeakable {number}" for number in range(5)), *(f"memory {number}" for number in range(9)))
    with endpoint(settings, refusing("unspeakable", refusal)) as remote:
        ticks.run("memory.embed_memories")
        assert len(held()) == 9
        assert found_of_embedder().says == "0 memories wait for it"
        asked = len(remote.received)
        ticks.run("memory.embed_memories")
        assert len(remote.received) == asked
        assert "unspeakable 1" in [hit.text for hit in ask(kee, "unspeakable")]
        with acting_as(kee):
            observe(kee, "unspeakable 5")
        assert found_of_embedder().says == "1 memories wait for it"


def test_text_that_fails_once_gets_its_vector(kee: Caller, settings: Any) -> None:
    tell(kee, "She sold the automobile.")
    with endpoint(settings) as remote:
        # The text, the plain word, and the text again.
        remote.script.extend([says(500), answers(), answers()])
        ticks.run("memory.embed_memories")
        assert len(held()) == 1


# What the operator is told.


def found_of_embedder() -> health.Finding:
    return next(finding for finding in health.examination() if finding.part == "embedder")


def test_doctor_shows_the_state_of_the_embedder(kee: Caller, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (found_of_embedder().ok, found_of_embedder().says) == (True, "none: recall goes by words alone")
    tell(kee, "She sold the automobile.")
    with endpoint(settings):
        assert found_of_embedder().says == "1 memories wait for it"
        ticks.run("memory.embed_memories")
        assert (found_of_embedder().ok, found_of_embedder().says) == (True, "0 memories wait for it")
        monkeypatch.setattr("apps.memory.vectors.LOOKED_AT", 0)
        assert (found_of_embedder().ok, "need an index" in found_of_embedder().says) == (False, True)


# Without pgvector.


@pytest.fixture
def without_pgvector(transactional_db: None) -> Iterator[None]:
    """The database as PostgreSQL is by itself; the one who may change that is the embedded server's superuser."""
    given = {**connection.get_connection_params(), "user": "postgres"}
    wanted = {name: value for name, value in given.items() if name in {"host", "port", "dbname", "user"}}
    try:
        superuser = psycopg.connect(**wanted, autocommit=True)
    except psycopg.OperationalError as exc:
        pytest.skip(f"nobody here may remove the extension: {exc}")
    with superuser:
        superuser.execute("drop extension vector")
        try:
            yield
        finally:
            superuser.execute("create extension vector")


def test_without_pgvector_recall_goes_by_words(
    without_pgvector: None, kee: Caller, embedder: Remote, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(kee, "Walruses sleep.", "Dogs bark.")
    with acting_as(kee):
        add(kee)
        remember(kee, "Loves dogs")
    assert embed_memories() == 0
    meant = meaning_of("Which dog barks?")
    assert meant is None
    assert embedder.received == []
    with acting_as(kee):
        assert [hit.text for hit in recall("Which dog barks?", caller=kee, meant=meant)] == ["Dogs bark."]
        assert [hit.text for hit in recall("dog", caller=kee, subject_id=ALICE)] == ["Loves dogs"]
        services.forget(author=kee, subject_id=ALICE, now=T0)
    assert not Vector.objects.exists()
    (finding,) = [finding for finding in health.examination() if finding.part == "embedder"]
    assert (finding.ok, "pgvector" in f"{finding.says} {finding.mend}") == (False, True)
    with pytest.raises(CommandError, match="pgvector"):
        call_command("index_vectors")


def test_without_pgvector_the_product_migrates(without_pgvector: None) -> None:
    call_command("migrate", "memory", "zero", verbosity=0)
    call_command("migrate", "memory", verbosity=0)
    with acting_as_system("test"):
        assert Vector.objects.count() == 0
