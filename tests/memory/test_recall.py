"""Recall finds by words, ranks what is rare above what is common, and stays behind the wall."""

from datetime import timedelta
from itertools import product

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.memory import services
from apps.memory.selectors import recall
from apps.memory.texts import tokens
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant
from tests.memory.test_store import observe


def refs(caller: Caller, query: str = "", **given: object) -> list[str]:
    return [hit.text for hit in recall(query, caller=caller, **given)]  # type: ignore[arg-type]


def test_words_are_found_in_any_form_and_each_hit_says_why(as_kee: Caller) -> None:
    observe(as_kee, "The optimizer was memoizing recursive calls.")
    observe(as_kee, "Nothing to see here.")
    (hit,) = recall("memoized recursion optimizations", caller=as_kee)
    assert (hit.text, hit.why) == (
        "The optimizer was memoizing recursive calls.",
        "has memoiz, optim, recurs; has words together as the question does",
    )
    assert hit.ref.startswith("observation:")


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("A cafe\u0301 in town", "caf\u00e9"),
        ("A caf\u00e9 in town", "CAFE\u0301"),
        ("Lives in Hauptstra\u00dfe", "hauptstrasse"),
        ("\uff46\uff55\uff4c\uff4c width", "full"),
        ("The o\ufb03ce is closed", "office"),
    ],
)
def test_words_are_found_however_their_letters_are_written(as_kee: Caller, stored: str, asked: str) -> None:
    observe(as_kee, stored)
    observe(as_kee, "Nothing to see here.")
    assert refs(as_kee, asked) == [stored]


@pytest.mark.parametrize("dense", ["{0}.de/{0}", "{0}-{0}.de/{0}-{0}", "{0}-1{0}-{0}"])
def test_of_a_text_that_is_all_words_within_words_as_many_are_kept_as_fit(as_kee: Caller, dense: str) -> None:
    words = ("".join(letters) for letters in product("abcdefghijklmnopqrstuvwxyz0123456789", repeat=3))
    observe(as_kee, " ".join(["martha", *map(dense.format, words), "zebra"]))
    assert len(refs(as_kee, "martha")) == 1
    assert refs(as_kee, "zebra") == []


def test_a_rare_word_weighs_more_than_a_common_one_and_a_short_text_more_than_a_long(as_kee: Caller) -> None:
    for number in range(20):
        observe(as_kee, f"The build number {number} was green.")
    observe(as_kee, "A flaky test.")
    observe(as_kee, "A flaky test was seen in a nightly run that took a very long time on an overloaded machine.")
    found = refs(as_kee, "flaky build")
    assert found[0] == "A flaky test."
    assert found[1].startswith("A flaky test was seen")
    assert found[2].startswith("The build number")


def test_patterns_and_concepts_are_recalled_by_name_alias_and_text(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="PostgreSQL", aliases=["elephant"], concept_type="database", now=T0)
    services.update_pattern(
        author=as_kee, category="storage", pattern_name="vacuum", pattern_text="Runs at night.", confidence=1, now=T0
    )
    assert [hit.ref for hit in recall("elephants", caller=as_kee)] == ["concept:postgresql"]
    assert [hit.ref.split(":")[0] for hit in recall("vacuums", caller=as_kee)] == ["pattern"]


@pytest.mark.parametrize("query", ["WHO", "who", "What did the WHO do?", "WHO budget"])
def test_a_name_of_stop_words_alone_stands_for_the_other_names(as_kee: Caller, query: str) -> None:
    services.store_concept(
        author=as_kee, name="World Health Organization", aliases=["WHO"], description="Meets in Geneva", now=T0
    )
    observe(as_kee, "The World Health Organization raised its budget")
    observe(as_kee, "Nothing to see here.")
    hits = recall(query, caller=as_kee)
    assert {hit.text for hit in hits} == {
        "The World Health Organization raised its budget",
        "World Health Organization: Meets in Geneva",
    }
    assert all("health (who)" in hit.why for hit in hits)


def test_a_stop_word_is_no_name_where_it_is_not_written_as_one(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="World Health Organization", aliases=["WHO"], now=T0)
    observe(as_kee, "Lee saw a zebra.")
    assert refs(as_kee, "Who saw the zebra?") == ["Lee saw a zebra."]


def test_a_revised_pattern_is_found_by_its_new_words_only(as_kee: Caller) -> None:
    for text in ("Walruses.", "Penguins."):
        services.update_pattern(
            author=as_kee, category="zoo", pattern_name="cold", pattern_text=text, confidence=1, now=T0
        )
    assert refs(as_kee, "walrus") == []
    assert refs(as_kee, "penguin") == ["cold: Penguins."]


@pytest.mark.parametrize("query", ["", "   "])
def test_an_empty_query_lists_the_newest_first(as_kee: Caller, query: str) -> None:
    for days in (2, 0, 1):
        services.store_observation(author=as_kee, text=f"day {days}", now=T0 + timedelta(days=days))
    assert refs(as_kee, query, limit=2) == ["day 2", "day 1"]


def test_domain_and_filters_narrow_inside_the_query(as_kee: Caller) -> None:
    observe(as_kee, "worker one", domain="worker_registry", metadata={"managed_by": {"delegate": "code"}})
    observe(as_kee, "worker two", domain="worker_registry", metadata={"managed_by": {"delegate": "mail"}})
    observe(as_kee, "worker three", domain="other", metadata={"managed_by": {"delegate": "code"}})
    narrowed = {"domain": "worker_registry", "filters": {"metadata.managed_by.delegate": "code"}}
    for query in ("", "worker"):
        assert refs(as_kee, query, **narrowed) == ["worker one"]


def test_what_is_superseded_is_recalled_only_as_of_before(as_kee: Caller) -> None:
    older = observe(as_kee, "The port is 80.")
    services.store_observation(
        author=as_kee, text="The port is 443.", supersedes=older.ref, now=T0 + timedelta(hours=1)
    )
    assert refs(as_kee, "port") == ["The port is 443."]
    assert refs(as_kee, "port", as_of=T0 + timedelta(minutes=59)) == ["The port is 80."]


@pytest.mark.parametrize("words", ["long " * 20, "長い話 " * 20, "дл" * 30, "9f8e" * 20, "😀 " * 20])
@pytest.mark.parametrize("query", ["told", ""])
def test_a_budget_is_never_exceeded_in_whatever_is_written(as_kee: Caller, words: str, query: str) -> None:
    for number in range(6):
        observe(as_kee, f"told {number} {words}")
    whole = sum(tokens(hit.text) for hit in recall(query, caller=as_kee))
    for budget in range(1, whole + 2, 7):
        taken = sum(tokens(hit.text) for hit in recall(query, caller=as_kee, max_tokens=budget))
        assert budget - whole // 6 - 1 <= taken <= budget
    assert len(recall(query, caller=as_kee, max_tokens=whole)) == 6


def test_what_is_too_long_for_a_budget_leaves_room_for_what_is_not(as_kee: Caller) -> None:
    for text in ("walrus", "walrus " + "talks " * 500, "walrus"):
        observe(as_kee, text)
    assert refs(as_kee, "", max_tokens=4) == ["walrus", "walrus"]
    assert recall("", caller=as_kee, max_tokens=1) == []


@pytest.mark.parametrize("query", ["zebra", "the of and", "'); drop table x; --", "a & b | !c :*", "😀", "%s %(x)s"])
def test_a_query_without_a_match_finds_nothing(as_kee: Caller, query: str) -> None:
    observe(as_kee)
    assert recall(query, caller=as_kee) == []


def test_another_tenants_memories_are_never_recalled(db: None) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    with acting_as(stranger):
        observe(stranger, "The secret port.")
    with acting_as(kee):
        observe(kee, "The public port.")
        assert refs(kee, "port") == refs(kee) == ["The public port."]


def test_recall_is_one_statement(as_kee: Caller) -> None:
    observe(as_kee)
    for asked in ({"query": "build"}, {"query": ""}, {"query": "build", "domain": "ci", "filters": {"run": 1}}):
        with CaptureQueriesContext(connection) as captured:
            recall(caller=as_kee, **asked)
        assert len(captured) == 1
