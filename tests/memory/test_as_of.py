"""As of before, recall answers what was known before."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.core import erasure
from apps.memory import search, services
from apps.memory.models import Memory, Revision
from apps.memory.selectors import recall
from apps.memory.shapes import RecalledMemory
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller
from tests.memory.subjects import ALICE, add, remember
from tests.memory.test_store import observe

DAY = timedelta(days=1)


def pattern(author: Caller, text: str, *, day: float, confidence: float = 0.8) -> Memory:
    return services.update_pattern(
        author=author,
        category="ci",
        pattern_name="builds",
        pattern_text=text,
        confidence=confidence,
        now=T0 + day * DAY,
    )


def concept(author: Caller, *, day: float, **given: Any) -> Memory:
    return services.store_concept(author=author, name="Python", now=T0 + day * DAY, **given)


def known(caller: Caller, query: str, *, day: float, **given: Any) -> RecalledMemory | None:
    return next(iter(recall(query, caller=caller, as_of=T0 + day * DAY, **given)), None)


@pytest.mark.parametrize("query", ["builds", ""])
def test_a_pattern_reads_as_of_before_as_its_revision_of_then(as_kee: Caller, tenant: Tenant, query: str) -> None:
    lee = make_caller(tenant, "Lee")
    pattern(as_kee, "Fast.", day=0, confidence=0.9)
    with acting_as(lee):
        pattern(lee, "Slow.", day=2, confidence=0.7)
        pattern(lee, "Slow on Mondays.", day=4, confidence=0.5)
    read = [known(as_kee, query, day=day) for day in (-1, 0, 1, 2, 3, 4)]
    assert [hit and (hit.text, hit.confidence, hit.author) for hit in read] == [
        None,
        ("builds: Fast.", 0.9, "Kee"),
        ("builds: Fast.", 0.9, "Kee"),
        ("builds: Slow.", 0.7, "Lee"),
        ("builds: Slow.", 0.7, "Lee"),
        ("builds: Slow on Mondays.", 0.5, "Lee"),
    ]
    assert recall(query, caller=as_kee)[0].text == "builds: Slow on Mondays."


@pytest.mark.parametrize("query", ["python", ""])
def test_a_concept_reads_as_of_before_as_it_was_described_then(as_kee: Caller, tenant: Tenant, query: str) -> None:
    lee = make_caller(tenant, "Lee")
    concept(as_kee, day=0)
    concept(as_kee, day=1, concept_type="language", description="A snake.", metadata={"v": 1})
    with acting_as(lee):
        concept(lee, day=2, aliases=["py"])
        concept(lee, day=3, description="A language.", metadata={"v": 2})
    read = [known(as_kee, query, day=day) for day in (0.5, 1, 2, 3)]
    assert [hit and (hit.text, hit.domain, hit.metadata, hit.author) for hit in read] == [
        ("Python", "", {}, "Kee"),
        ("Python (language): A snake.", "language", {"v": 1}, "Kee"),
        ("Python (language): A snake.", "language", {"v": 1}, "Lee"),
        ("Python (language): A language.", "language", {"v": 2}, "Lee"),
    ]


def test_no_filter_finds_as_of_before_what_had_other_metadata_then(as_kee: Caller) -> None:
    concept(as_kee, day=0, metadata={"kind": "snake", "v": 1})
    concept(as_kee, day=2, metadata={"kind": "snake", "v": 2})
    filters = ({"kind": "snake"}, {"v": 2})
    found = [[known(as_kee, "", day=day, filters=one) is not None for one in filters] for day in (1, 3)]
    assert found == [[True, False], [True, True]]


def test_a_concept_that_is_described_as_before_keeps_no_other_row(as_kee: Caller) -> None:
    for day in (0, 1, 2):
        concept(as_kee, day=day, description="A language.", aliases=["py"])
    assert Revision.objects.count() == 0
    assert known(as_kee, "python", day=0.5) is not None


@pytest.mark.parametrize("changed", [{"text": "rewritten"}, {"aliases": []}, {"recorded_at": T0 - DAY}], ids=str)
def test_revisions_are_immutable(as_kee: Caller, changed: dict[str, Any]) -> None:
    for day in (0, 1):
        concept(as_kee, day=day, description=f"Version {day}.", aliases=["py"])
        pattern(as_kee, f"Version {day}.", day=day)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        Revision.objects.update(**changed)
    with erasure.redacting(), pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        Revision.objects.update(**changed)


def test_what_is_forgotten_of_then_is_not_answered_as_of_then(as_kee: Caller) -> None:
    for day, text in enumerate(["USER:zoe", "Met somebody."]):
        pattern(as_kee, text, day=day)
        concept(as_kee, day=day, description=text)
    with acting_as_system("a test"), erasure.redacting():
        erased = erasure.erase(as_kee.tenant_id, "USER:zoe")
    assert erased.keys() == {"memory_revision"}
    assert recall("", caller=as_kee, as_of=T0) == []
    assert {hit.text for hit in recall("", caller=as_kee)} == {"Python: Met somebody.", "builds: Met somebody."}


@pytest.mark.parametrize("narrowing", [{}, {"domain": "zoo"}, {"filters": {"of": "zoo"}}, {"as_of": T0 + DAY}])
def test_what_has_been_superseded_often_hides_nothing_that_stands(as_kee: Caller, narrowing: dict[str, Any]) -> None:
    refs: list[str] = []
    for number in range(260):
        stored = services.store_observation(
            author=as_kee,
            text="zebra count" if number < 259 else "The zebra has left for good",
            domain="zoo",
            metadata={"of": "zoo"},
            supersedes=refs[-1] if refs else None,
            now=T0 + timedelta(seconds=number),
        )
        refs.append(stored.ref)
    assert [hit.ref for hit in recall("zebra count", caller=as_kee, **narrowing)] == refs[-1:]


def test_of_a_words_newest_those_are_considered_that_stand(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_SCORED", 3)
    observe(as_kee, "The zebra is older than all that is known of it")
    last = observe(as_kee, "zebra count")
    for _ in range(5):
        last = observe(as_kee, "zebra count", supersedes=last.ref)
    assert len(recall("zebra", caller=as_kee)) == 2


@pytest.mark.parametrize("query", ["fettuccini", ""])
def test_of_a_subject_whose_dates_are_told_by_the_month_one_asks_by_the_month(as_kee: Caller, query: str) -> None:
    month = T0.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    add(as_kee, anonymize_dates=True)
    remember(as_kee, now=month + 9 * DAY)
    moments = [month - timedelta(microseconds=1), month, month + 9 * DAY, month + 10 * DAY]
    found = [recall(query, caller=as_kee, subject_id=ALICE, as_of=moment) for moment in moments]
    assert [[hit.text for hit in hits] for hits in found] == [[], *[["Loves fettuccini"]] * 3]
