"""The marks that metadata is found by: whatever contains a document has all of its marks."""

import json
from typing import Any

from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.memory import services
from apps.memory.models import Posting
from apps.memory.selectors import recall
from apps.principals.tenancy import Caller
from tests.factories import T0
from tests.memory.test_store import observe

NAMES = st.sampled_from(["a", "b", "a.b", "", " "])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from("ab1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


@st.composite
def part_of(draw: st.DrawFn, whole: Any) -> Any:
    """Something that the whole contains, with numbers written otherwise."""
    if isinstance(whole, dict):
        return {name: draw(part_of(value)) for name, value in whole.items() if draw(st.booleans())}
    if isinstance(whole, list):
        return [draw(part_of(value)) for value in whole if draw(st.booleans())]
    return float(whole) if isinstance(whole, int) and abs(whole) < 1_000 and not isinstance(whole, bool) else whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), whole=DOCUMENTS)
def test_what_contains_a_document_has_all_its_marks(db: None, data: st.DataObject, whole: dict[str, Any]) -> None:
    part = data.draw(part_of(whole))
    with connection.cursor() as cursor:
        cursor.execute(
            "select w @> p, memory_marks(w) @> memory_marks(p), cardinality(memory_marks(p)) > 0, left(min(mark), 1)"
            " from (select %s::jsonb as w, %s::jsonb as p) d left join unnest(memory_marks(p)) m(mark) on true"
            " group by w, p",
            [json.dumps(whole), json.dumps(part)],
        )
        (contains, has_marks, is_marked, begins) = cursor.fetchone()
    assert contains
    assert has_marks
    assert is_marked == bool(part)
    assert begins in (None, " ")


def test_a_concept_is_found_by_the_metadata_that_it_has_now(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="pump", metadata={"state": "new"}, now=T0)
    services.store_concept(author=as_kee, name="pump", metadata={"state": "worn"}, now=T0)
    for query in ("", "pump"):
        assert recall(query, caller=as_kee, filters={"state": "new"}) == []
        assert len(recall(query, caller=as_kee, filters={"state": "worn"})) == 1


def test_nothing_is_found_by_a_mark_as_by_a_word(as_kee: Caller) -> None:
    observe(as_kee, "Nothing.", metadata={"state": "new"})
    for term in Posting.objects.values_list("term", flat=True):
        assert bool(recall(term, caller=as_kee)) == (not term.startswith(" "))
