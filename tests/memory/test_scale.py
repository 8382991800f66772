"""What is asked often touches a bounded number of rows, on indexes, as the application's role sees them."""

import json
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q, Sum
from django.test.utils import CaptureQueriesContext

from apps.core.ticks import run
from apps.memory import services, sql
from apps.memory.models import Concept, Observation, Passage, Pattern, Posting, Subject, Tally
from apps.memory.questions import read
from apps.memory.selectors import holdings, recall, recent_sessions
from apps.memory.sql import postings, subjects, tallies
from apps.memory.texts import same_text
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests import ground
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, change, facts, remember
from tests.memory.test_store import observe

MANY = 6_000
FILLED = {"memory_observation", "memory_passage", "memory_posting"}

_FILL = """
with said as (
    insert into memory_observation (tenant_id, author_id, text, domain, confidence, evidence, metadata, occurred_at,
                                    recorded_at)
    select %(tenant)s, %(author)s, 'deadlock ' || i, case when i = 1 then 'old' else 'log' end, 1, '[]', '{}',
           %(now)s, %(now)s::timestamptz + i * interval '1 second'
    from generate_series(1, %(many)s) i
    returning id, tenant_id, domain, recorded_at, text
), passage as (
    insert into memory_passage (tenant_id, observation_id, domain, length, recorded_at)
    select tenant_id, id, domain, 2, recorded_at from said
    returning id, tenant_id, observation_id
), words as (
    insert into memory_posting (tenant_id, term, passage_id, frequency, length)
    select p.tenant_id, w.term, p.id, 1, 2
    from passage p join said on said.id = p.observation_id
    cross join lateral (values ('deadlock'), ('rare' || split_part(said.text, ' ', 2)::int %% 1000)) w(term)
)
insert into memory_tally (tenant_id, observations, patterns, concepts, passages, words)
values (%(tenant)s, %(many)s, 0, 0, %(many)s, 2 * %(many)s)
"""


@pytest.fixture
def well_read(as_kee: Caller) -> Caller:
    """An agent whose tenant remembers thousands of things, a word of which stands in each."""
    fill(as_kee)
    return as_kee


def fill(as_kee: Caller) -> None:
    with connection.cursor() as cursor:
        given: dict[str, Any] = {"tenant": as_kee.tenant_id, "author": as_kee.principal_id, "now": T0, "many": MANY}
        cursor.execute(_FILL, given)
    ground.analyzed(*FILLED, "memory_tally")


def plan_of(statement: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the plan that a hot statement runs by: the generic one."""
    names = re.findall(r"%\((\w+)\)s", statement)
    order = list(dict.fromkeys(names))
    for number, name in enumerate(order, 1):
        statement = statement.replace(f"%({name})s", f"${number}")
    with connection.cursor() as cursor:
        cursor.execute(f"prepare asked as {statement}")
        values = [given[name] for name in order]
        cursor.execute(f"explain (analyze, format json) execute asked({', '.join(['%s'] * len(values))})", values)
        (answer,) = cursor.fetchone()
        cursor.execute("deallocate asked")
    (explained,) = json.loads(answer) if isinstance(answer, str) else answer
    return list(_nodes(explained["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


def asked(caller: Caller, query: str = "", **narrowed: Any) -> dict[str, Any]:
    given = {"tenant": caller.tenant_id, "scope": 0, "domain": None, "filters": "{}", "limit": 10}
    given |= {"as_of": "infinity", "since": "-infinity"}
    return given | sql.asking(read(query), limit=10) | narrowed


def check(nodes: list[dict[str, Any]], *, tables: set[str], at_most: int) -> None:
    assert {node["Relation Name"] for node in nodes if "Relation Name" in node} >= tables
    for node in nodes:
        table = node.get("Relation Name", "")
        if table in FILLED:
            assert node["Node Type"] != "Seq Scan", node
            read_rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            assert table == "memory_posting" or read_rows * node["Actual Loops"] <= at_most, node


def test_recall_joins_no_more_memories_than_it_answers(well_read: Caller) -> None:
    nodes = plan_of(sql.RECALL, asked(well_read, "deadlock rare7"))
    check(nodes, tables={"memory_posting", "memory_passage", "memory_observation", "memory_tally"}, at_most=40)
    # Counted as far as it goes; chosen: the newest of the common word and all of the rare.
    posted = [node["Actual Rows"] * node["Actual Loops"] for node in nodes if "memory_posting" in node.values()]
    assert sum(posted) <= sql.COMMON + 600 + 2 * 6


def test_recall_of_a_subject_looks_at_no_more_than_the_best_until_enough_of_them_stand(well_read: Caller) -> None:
    given = asked(well_read, "deadlock rare7")
    nodes = plan_of(sql.RECALL_OF_SUBJECT, given)
    check(nodes, tables={"memory_posting", "memory_passage", "memory_observation"}, at_most=given["leading"])
    posted = [node["Actual Rows"] * node["Actual Loops"] for node in nodes if "memory_posting" in node.values()]
    assert sum(posted) <= sql.COMMON + 600 + 2 * 6


_NAMED = """
insert into memory_posting (tenant_id, term, passage_id, frequency, length)
select tenant_id, 'name' || row_number() over (order by id) %% %(names)s, id, 1, 2 from memory_passage
"""


def test_a_word_that_stands_for_many_names_reaches_no_more_passages_than_one_that_stands_for_a_few(
    well_read: Caller,
) -> None:
    names = 40
    with connection.cursor() as cursor:
        given: dict[str, Any] = {"names": names}
        cursor.execute(_NAMED, given)
    aliases = [f"name{number}" for number in range(names)]
    services.store_concept(author=well_read, name="gadget", aliases=aliases, now=T0)
    ground.analyzed(*FILLED, "memory_conceptname")
    assert len(recall("gadget", caller=well_read)) == 10
    nodes = plan_of(sql.RECALL, asked(well_read, "gadget"))
    # All are counted; scored: of a few as many as of a word alone, and of all others together as many.
    posted = [node["Actual Rows"] * node["Actual Loops"] for node in nodes if "memory_posting" in node.values()]
    assert MANY < sum(posted) <= MANY + 4 * MANY // names + 4 * 600 + 2 * names
    # Where rarer words choose, so few are looked up in each of what these have chosen.
    nodes = plan_of(sql.RECALL, asked(well_read, "gadget name7"))
    looks = [node["Actual Loops"] for node in nodes if "memory_posting" in node.values()]
    assert sum(looks) <= 2 * 4 * 250 + 4 * (names + 1)


def by_index_alone(*other_ways: str) -> None:
    """At this size, half of the table may well be sorted or merged; what counts is that the index can serve."""
    with connection.cursor() as cursor:
        for other_way in ("seqscan", "bitmapscan", "sort", *other_ways):
            cursor.execute(f"set local enable_{other_way} = off")


# Each finds nothing of the newest, which a word of the question stands in.
NARROWED: list[dict[str, Any]] = [
    {"domain": "old"},
    {"domain": "nowhere"},
    {"filters": '{"n": -1}'},
    {"filters": '{"n": -1}', "domain": "log"},
    {"as_of": T0 - timedelta(days=1)},
]


@pytest.mark.parametrize("narrowed", NARROWED)
def test_a_narrowed_question_looks_at_no_more_than_the_newest_of_what_it_asks_for_and_of_its_words(
    well_read: Caller, narrowed: dict[str, Any]
) -> None:
    by_index_alone()
    statement = sql.RECALL_OF_DOMAIN if "domain" in narrowed else sql.RECALL_NARROWED
    nodes = plan_of(statement, asked(well_read, "deadlock", **narrowed))
    # Of the word, of what is asked for, and each of both judged, by the memory too whether it still stands.
    check(nodes, tables={"memory_posting", "memory_passage", "memory_observation"}, at_most=2 * sql.COMMON)
    read_of: dict[str, float] = {}
    for node in nodes:
        rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        read_of[node.get("Relation Name", "")] = read_of.get(node.get("Relation Name", ""), 0) + rows
    assert read_of["memory_posting"] <= 4 * sql.COMMON
    assert read_of["memory_passage"] <= 4 * sql.COMMON < MANY
    assert read_of["memory_observation"] <= read_of["memory_passage"]


@pytest.mark.parametrize("narrowed", [{}, {"domain": "log"}])
def test_the_newest_with_metadata_that_nothing_has_are_none_by_index(
    well_read: Caller, narrowed: dict[str, str]
) -> None:
    by_index_alone()
    statement = sql.NEWEST_FILTERED_OF_DOMAIN if narrowed else sql.NEWEST_FILTERED
    nodes = plan_of(statement, asked(well_read, filters='{"n": -1}', **narrowed))
    check(nodes, tables={"memory_posting", "memory_passage"}, at_most=0)
    assert "memory_posting_once" in {node.get("Index Name") for node in nodes}


def test_what_the_oldest_has_in_its_metadata_is_found_among_thousands_with_the_same_word(as_kee: Caller) -> None:
    observe(as_kee, "The first deadlock.", metadata={"at": {"floor": 7.0, "rooms": ["a", "b"]}})
    fill(as_kee)
    held: list[dict[str, Any]] = [{"at.floor": 7}, {"metadata.at": {"rooms": ["b"]}}, {"at": {}}]
    for query in ("", "deadlock"):
        for filters in held:
            found = recall(query, caller=as_kee, filters=filters)
            assert [hit.text for hit in found] == ["The first deadlock."]
            assert recall(query, caller=as_kee, filters=filters, domain="log") == []
            assert recall(query, caller=as_kee, filters=filters, as_of=T0 - timedelta(seconds=1)) == []
        assert recall(query, caller=as_kee, filters={"at.rooms": "b"}) == []


@pytest.mark.parametrize("statement", [sql.RECALL, sql.RECALL_NARROWED])
def test_what_conversations_add_is_not_compared_each_with_each(as_kee: Caller, statement: str) -> None:
    conversations = 50
    for number in range(conversations):
        services.store_observation(author=as_kee, text="A deadlock.", conversation_id=f"{number}", now=T0)
    ground.analyzed(*FILLED, "memory_tally")
    nodes = plan_of(statement, asked(as_kee, "deadlock"))
    assert max(node["Actual Rows"] for node in nodes) >= 5 * conversations
    compared = [node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in nodes]
    assert sum(compared) <= 5 * conversations


@pytest.mark.parametrize("narrowed", [{}, {"domain": "log"}])
def test_the_newest_are_read_off_an_index(well_read: Caller, narrowed: dict[str, str]) -> None:
    statement = sql.NEWEST_OF_DOMAIN if narrowed else sql.NEWEST
    by_index_alone("hashjoin", "mergejoin")
    nodes = plan_of(statement, asked(well_read, **narrowed))
    check(nodes, tables={"memory_passage", "memory_observation"}, at_most=11)
    index = "memory_passage_domain" if narrowed else "memory_passage_newest"
    assert index in {node.get("Index Name") for node in nodes}


def test_among_thousands_the_rare_word_leads_and_a_narrowed_question_reaches_the_oldest(well_read: Caller) -> None:
    found = [hit.text for hit in recall("deadlock rare7", caller=well_read)]
    assert found == [f"deadlock {number}" for number in (5007, 4007, 3007, 2007, 1007, 7, 6000, 5999, 5998, 5997)]
    assert [hit.text for hit in recall("deadlock", caller=well_read, domain="old")] == ["deadlock 1"]
    (early,) = recall("deadlock", caller=well_read, as_of=T0 + timedelta(seconds=45), limit=1)
    assert early.text == "deadlock 45"


def test_what_is_said_in_a_new_conversation_is_among_the_newest_of_thousands(well_read: Caller) -> None:
    services.store_observation(author=well_read, text="Deadlock!", conversation_id="new", now=T0)
    services.store_observation(author=well_read, text="Deadlock again!", conversation_id="new", now=T0)
    assert {hit.text for hit in recall("deadlock", caller=well_read, limit=2)} == {"Deadlock!", "Deadlock again!"}


def test_what_is_said_with_a_subject_in_a_new_conversation_is_among_the_newest_of_it(well_read: Caller) -> None:
    add(well_read)
    Posting.objects.update(scope=(about := Subject.objects.get().pk))
    Passage.objects.update(scope=about)
    Tally.objects.update(scope=about)
    services.record_session(principal=well_read, conversation_id="new", subject_id=ALICE, now=T0)
    services.store_observation(author=well_read, text="Deadlock!", conversation_id="new", now=T0)
    (hit,) = recall("deadlock", caller=well_read, subject_id=ALICE, limit=1)
    assert hit.text == "Deadlock!"


def test_a_pattern_reads_as_of_before_by_index_however_often_it_was_revised_since(as_kee: Caller) -> None:
    given: dict[str, Any] = {"author": as_kee, "category": "zoo", "pattern_name": "walruses", "confidence": 1}
    _, pattern = [
        services.update_pattern(**given, pattern_text=text, now=T0 + timedelta(days=day))
        for day, text in enumerate(["They sleep.", "They wake."])
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into memory_patternrevision"
            " (tenant_id, author_id, pattern_id, number, text, confidence, evidence, recorded_at)"
            " select tenant_id, author_id, pattern_id, number + i, text, 1, '[]', recorded_at + i * interval '1 second'"
            " from memory_patternrevision cross join generate_series(1, %s) i where pattern_id = %s and number = 2",
            [MANY, pattern.pk],
        )
    ground.analyzed("memory_patternrevision", "memory_passage")
    (node,) = [
        node
        for node in plan_of(sql.NEWEST, asked(as_kee, as_of=T0 + timedelta(hours=1)))
        if node.get("Relation Name") == "memory_patternrevision"
    ]
    assert (node.get("Index Name"), node["Actual Rows"]) == ("memory_patternrevision_from", 1)
    assert node.get("Rows Removed by Filter", 0) == 0
    (hit,) = recall(caller=as_kee, as_of=T0 + timedelta(hours=1))
    assert hit.text == "walruses: They sleep."


def test_what_goes_is_compared_with_the_common_words_of_its_own_words_alone(well_read: Caller) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into memory_commonword (tenant_id, scope, term, passages)"
            " select %s, s, 'word' || n, 2000 from generate_series(1000000, 1000020) s, generate_series(1, 300) n"
            " union all select %s, s, 'deadlock', 2000 from generate_series(1000000, 1000002) s",
            [well_read.tenant_id] * 2,
        )
    ground.analyzed("memory_commonword")
    place = Passage.objects.values_list("pk", flat=True)[0]
    add(well_read)
    for statement, given, found in (
        (subjects._UNINDEX, {"subject": Subject.objects.get().pk}, 0),
        (postings._DROP, {"places": [place]}, 3),
    ):
        read = [
            node["Actual Rows"] * node["Actual Loops"]
            for node in plan_of(statement, given)
            if node.get("Relation Name") == "memory_commonword" and node["Node Type"] != "ModifyTable"
        ]
        assert max(read, default=0) == found


_SESSIONS = """
insert into memory_session (tenant_id, principal_id, subject_id, conversation_id, platform, title, summary, topics, tone,
                            started_at, last_active_at, is_forgotten)
select tenant_id, %(principal)s, case when i %% 2 = 0 then id end, 'c' || i, '', '', '', '{}', '',
       %(now)s::timestamptz + i * interval '1 second', %(now)s::timestamptz + i * interval '1 second', i %% 2 = 1
from memory_subject cross join generate_series(1, %(many)s) i where key = %(subject)s
"""


@pytest.mark.parametrize("settled", [{"memory_enabled": False}, {"share_with": ["Hexy"]}, {"delete_after_days": 1}])
def test_the_latest_sessions_are_found_behind_any_number_that_are_hidden(
    as_kee: Caller, tenant: Tenant, settled: dict[str, Any]
) -> None:
    make_caller(tenant, "Hexy")
    add(as_kee)
    add(as_kee, "USER:bob")
    for number, subject_id in enumerate((None, "USER:bob", None, "USER:bob"), start=1):
        begun = T0 + timedelta(seconds=number)
        services.record_session(principal=as_kee, conversation_id=f"{number}", subject_id=subject_id, now=begun)
    with connection.cursor() as cursor:
        given: dict[str, Any] = {"principal": as_kee.principal_id, "now": T0, "many": MANY, "subject": ALICE}
        cursor.execute(_SESSIONS, given)
    change(as_kee, **settled)
    ground.analyzed("memory_session", "memory_subject")
    now = T0 + timedelta(seconds=MANY, days=1)
    found = recent_sessions(principal_id=as_kee.principal_id, now=now)
    assert [one.conversation_id for one in found] == ["4", "3", "2", "1"]
    nodes = plan_of(sql.RECENT, {"principal": as_kee.principal_id, "now": now, "limit": 10})
    looked_at = [
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if node.get("Relation Name") == "memory_session"
    ]
    # The newest, once to show some of them and twice to count them; then one by one.
    assert sum(looked_at) <= 3 * 100 + 20


def test_what_a_tenant_holds_is_read_off_its_tally(well_read: Caller) -> None:
    assert holdings(tenant_id=well_read.tenant_id).observations == MANY
    # Of thousands of subjects in each of two tenants.
    for caller in (well_read, make_caller(make_tenant("globex"))):
        with acting_as(caller), connection.cursor() as cursor:
            cursor.execute(
                "insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words)"
                " select %s, scope, 1, 0, 0, 0, 0 from generate_series(1, 3000) scope",
                [caller.tenant_id],
            )
    ground.analyzed("memory_tally")
    nodes = plan_of(sql.HOLDINGS, {"tenant": well_read.tenant_id})
    assert [node["Index Name"] for node in nodes if "Index Name" in node] == ["memory_tally_of_tenant"], nodes
    assert "Seq Scan" not in {node["Node Type"] for node in nodes}


def check_tally(caller: Caller) -> None:
    """The tally says what counting says."""
    held = holdings(tenant_id=caller.tenant_id)
    assert (held.observations, held.patterns, held.concepts) == (
        Observation.objects.filter(superseded_at=None).count(),
        Pattern.objects.count(),
        Concept.objects.count(),
    )
    assert Tally.objects.aggregate(passages=Sum("passages"), words=Sum("words")) == {
        "passages": Passage.objects.count(),
        "words": Passage.objects.aggregate(words=Sum("length"))["words"],
    }
    assert Passage.objects.aggregate(words=Sum("length")) == Posting.objects.aggregate(words=Sum("frequency"))
    superseded = Q(passage__observation__superseded_at__isnull=False) | Q(passage__item__superseded_at__isnull=False)
    assert set(Posting.objects.filter(superseded=True)) == set(Posting.objects.filter(superseded))


def write_everything(author: Caller, number: int = 0) -> None:
    older = observe(author, f"Walruses number {number} sleep.")
    observe(author, "Walruses wake up early.", supersedes=older.ref)
    for text in ("Long words that are many.", "Short."):
        services.update_pattern(
            author=author, category="zoo", pattern_name=f"{number}", pattern_text=text, confidence=1, now=T0
        )
    for description in ("A beast of the north.", "A beast."):
        services.store_concept(author=author, name=f"walrus {number}", description=description, now=T0)
    services.add_relationship(author=author, from_concept=f"walrus {number}", to_concept="ice", rel_type="on", now=T0)


def test_every_write_is_tallied_and_folding_changes_no_sum(transactional_db: None) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    for caller in (kee, stranger):
        with acting_as(caller):
            write_everything(caller)
            check_tally(caller)
    with acting_as(kee):
        observe(kee)
    assert run("memory.fold_tallies")
    for caller in (kee, stranger):
        with acting_as(caller):
            assert Tally.objects.count() == 1
            check_tally(caller)


def test_folding_leaves_what_nobody_has_added_to_and_looks_at_nothing_else(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee), connection.cursor() as cursor:
        observe(kee)
        cursor.execute(
            "insert into memory_tally (tenant_id, scope, observations, patterns, concepts, passages, words, folded)"
            " select %s, s, 1, 0, 0, 1, 1, true from generate_series(1, 5000) s",
            [kee.tenant_id],
        )
    services.fold_tallies()
    with acting_as(kee):
        before = set(Tally.objects.values_list("pk", flat=True))
        assert Tally.objects.filter(folded=True).count() == len(before) == 5001
    services.fold_tallies()
    with acting_as(kee):
        assert set(Tally.objects.values_list("pk", flat=True)) == before
        observe(kee)
    services.fold_tallies()
    with acting_as(kee):
        assert len(before - set(Tally.objects.values_list("pk", flat=True))) == 1
        assert Tally.objects.get(scope=0).observations == 2
    for statement, given in ((tallies._FOLD, None), (tallies._OUTDATED, {"common": sql.COMMON})):
        with acting_as_system("test"), connection.cursor() as cursor:
            ground.analyzed("memory_tally")
            cursor.execute(f"explain (format json) {statement}", given)
            (answer,) = cursor.fetchone()
        (explained,) = json.loads(answer) if isinstance(answer, str) else answer
        for node in _nodes(explained["Plan"]):
            assert (node["Node Type"], node.get("Relation Name")) != ("Seq Scan", "memory_tally"), explained


def test_writers_do_not_wait_for_each_others_tally_and_none_is_lost_while_it_is_folded(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    stored, folded, done = threading.Barrier(4), threading.Barrier(4), []

    def write(number: int) -> None:
        try:
            with acting_as(kee):
                write_everything(kee, number)
            done.append(number)
        finally:
            connection.close()

    def hold() -> None:
        try:
            with acting_as(kee):
                observe(kee, "Stored, and not yet committed.")
                stored.wait(timeout=20)
                folded.wait(timeout=20)
        finally:
            connection.close()

    with acting_as(kee):
        write_everything(kee)
    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    stored.wait(timeout=20)
    writer = threading.Thread(target=write, args=[1])
    writer.start()
    writer.join(timeout=20)
    services.fold_tallies()
    assert done == [1]
    folded.wait(timeout=20)
    for thread in threads:
        thread.join(timeout=20)
    services.fold_tallies()
    with acting_as(kee):
        assert Tally.objects.count() == 1
        check_tally(kee)


# What so many answers to one question leave, two of them in turns: each was so for a minute of its own.
_ANSWERED = """
insert into memory_item (tenant_id, subject_id, author_id, type, text, text_digest, slot, slot_key, confidence, source, stated,
                         evidence, valid_from, valid_to, said_at, recorded_at)
select tenant_id, subject_id, author_id, type, said, digest, slot, slot_key, confidence, source, stated, evidence,
       %(now)s::timestamptz - (2 * i + n) * interval '1 minute',
       %(now)s::timestamptz - (2 * i + n - 1) * interval '1 minute', said_at, recorded_at
from memory_item
cross join (values ('at home', %(home)s::bytea, 0), ('at work', %(work)s::bytea, 1)) t(said, digest, n)
cross join generate_series(1, %(many)s) i
where valid_to is null and superseded_at is null
"""


def test_an_answer_meets_those_of_its_time_alone_however_often_the_question_was_answered(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "at home", slot="whereabouts")

    def answered(text: str, hour: int) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            done = remember(as_kee, text, slot="whereabouts", now=T0 + timedelta(hours=hour))
        assert len(done.replaced) == 1
        return [query["sql"] for query in captured]

    few = answered("at work", 1)
    with connection.cursor() as cursor:
        digests = {"home": same_text("at home"), "work": same_text("at work")}
        cursor.execute(_ANSWERED, digests | {"now": T0, "many": MANY // 2})
    ground.analyzed("memory_item")
    with connection.cursor() as cursor:
        cursor.execute("set constraints all deferred")
    many = answered("at home", 2)
    assert len(many) == len(few)
    indexes = set()
    for asked in many:
        if asked.startswith("SELECT") and '"valid_from" <' in asked:
            with connection.cursor() as cursor:
                cursor.execute(f"explain (analyze, format json) {asked}")
                (answer,) = cursor.fetchone()
            (explained,) = json.loads(answer) if isinstance(answer, str) else answer
            for node in _nodes(explained["Plan"]):
                assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) < 10, explained
                indexes.add(node.get("Index Name"))
    assert {"memory_item_answering", "memory_item_saying"} <= indexes


# Others, of each of whom little is remembered.
_OTHERS = """
with s as (
    insert into memory_subject (tenant_id, key, display_name, learning_level, domains, preferences, memory_enabled,
                                learn_patterns, anonymize_dates, rev, created_at, revised_at)
    select %(tenant)s, 'USER:' || i, '', '', '{}', '{}', true, true, false, 1, %(now)s, %(now)s
    from generate_series(1, 1000) i returning id
)
insert into memory_item (tenant_id, subject_id, author_id, type, text, text_digest, confidence, source, stated, evidence,
                         valid_from, said_at, recorded_at)
select %(tenant)s, s.id, %(author)s, 'USER_FACT', 'fact ' || n, sha256((s.id || ' ' || n)::bytea), 0.5, '', false, '[]', %(now)s,
       %(now)s, %(now)s
from s, generate_series(1, 10) n
"""


def items_read(nodes: list[dict[str, Any]]) -> int:
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if node.get("Relation Name") == "memory_item"
    )


def test_an_envelope_reads_nothing_of_what_has_ended_however_much_that_is(as_kee: Caller) -> None:
    add(as_kee)
    remember(as_kee, "at home", slot="whereabouts")
    with connection.cursor() as cursor:
        digests = {"home": same_text("at home"), "work": same_text("at work")}
        cursor.execute(_ANSWERED, digests | {"now": T0, "many": MANY // 2})
        cursor.execute(_OTHERS, {"tenant": as_kee.tenant_id, "author": as_kee.principal_id, "now": T0})
    remember(as_kee, "has a dentist's appointment", valid_to=T0 + timedelta(days=400), now=T0)
    ground.analyzed("memory_item", "memory_subject", "memory_memorypolicy", "memory_session")
    given = {"tenant": as_kee.tenant_id, "subject": ALICE, "viewer": as_kee.name, "now": T0 + timedelta(days=1)}
    nodes = plan_of(sql.ENVELOPE, given)
    assert {"memory_item_current", "memory_item_ending"} <= {node.get("Index Name") for node in nodes}
    assert items_read(nodes) < 10
    assert facts(as_kee, now=T0 + timedelta(days=1)) == ["has a dentist's appointment", "at home"]
