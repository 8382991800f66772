"""The index of words: whatever came in whatever order, merged or not, the same documents give the same answers."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plans.lexindex import Field, LexIndex, merged

FIELDS = {"name": Field(3.0, 3, 1), "text": Field(1.0, 10, 2)}
WORDS = [f"w{number}" for number in range(12)]
DOCUMENTS = st.dictionaries(
    st.sampled_from([f"key{number}" for number in range(20)]),
    st.tuples(st.lists(st.sampled_from(WORDS), max_size=4), st.lists(st.sampled_from(WORDS), max_size=8)),
    max_size=20,
)


def filled(documents: dict[str, tuple[list[str], list[str]]]) -> LexIndex:
    index = LexIndex(FIELDS)
    for key, (name, text) in documents.items():
        index.put(key, {"name": name, "text": text})
    return index


def answers(index: LexIndex, query: Sequence[str], limit: int = 5) -> list[tuple[str, float, list[int]]]:
    found = index.search(query, limit=limit)
    return [
        (index.key(doc), score, found.marks[:, place].tolist())
        for place, (doc, score) in enumerate(zip(found.docs.tolist(), found.scores.tolist(), strict=True))
    ]


@settings(max_examples=100)
@given(first=DOCUMENTS, then=DOCUMENTS, gone=st.sets(st.sampled_from([f"key{n}" for n in range(20)])), data=st.data())
def test_answers_depend_on_the_documents_alone(
    first: dict[str, tuple[list[str], list[str]]],
    then: dict[str, tuple[list[str], list[str]]],
    gone: set[str],
    data: st.DataObject,
) -> None:
    grown = filled(first)
    if data.draw(st.booleans()):
        grown.merge()
    frozen = grown.frozen() if data.draw(st.booleans()) else None
    for key, (name, text) in then.items():
        grown.put(key, {"name": name, "text": text})
    for key in gone:
        grown.drop(key)
    if frozen is not None:
        grown.adopt(merged(frozen))
    left = {key: document for key, document in {**first, **then}.items() if key not in gone}
    fresh = filled(dict(sorted(left.items(), reverse=True)))
    query = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))

    assert answers(grown, query) == answers(fresh, query)
    grown.merge()
    assert answers(grown, query) == answers(fresh, query)
    assert len(grown) == len(left)


def test_documents_that_are_not_allowed_are_left_out() -> None:
    index = filled({"best": (["w1", "w2"], []), "other": (["w1"], []), "last": ([], ["w1"])})
    allowed = np.ones(index.size, dtype=np.bool_)
    best = index.number("best")
    assert best is not None
    allowed[best] = False

    found = index.search(["w1", "w2"], limit=2, allowed=allowed)

    assert [index.key(doc) for doc in found.docs.tolist()] == ["other", "last"]


def test_common_word_only_refines() -> None:
    index = LexIndex(FIELDS)
    for number in range(6_000):
        index.put(f"k{number:05}", {"name": ["common", f"rare{number % 10}"], "text": []})
    for merge in (False, True):
        if merge:
            index.merge()
        found = index.search(["common", "rare3"], limit=3)
        assert [index.key(doc) for doc in found.docs.tolist()] == ["k00003", "k00013", "k00023"]
        assert len(index.search(["common"], limit=10_000).docs) == 6_000


def test_equal_scores_are_ordered_by_key() -> None:
    index = filled({"b": (["w1"], []), "a": (["w1"], []), "c": (["w1"], [])})

    assert [key for key, _, _ in answers(index, ["w1"], limit=2)] == ["a", "b"]


@settings(max_examples=25)
@given(
    names=st.lists(st.lists(st.sampled_from([*WORDS[:2] * 8, *WORDS]), max_size=4), min_size=300, max_size=700),
    query=st.lists(st.sampled_from(WORDS[:4]), min_size=1, max_size=4),
    limit=st.integers(min_value=1, max_value=30),
)
def test_limited_answer_is_the_start_of_the_whole(names: list[list[str]], query: list[str], limit: int) -> None:
    index = filled({f"k{number:03}": (name, [*(name or WORDS)[:1]]) for number, name in enumerate(names)})
    index.merge()

    assert answers(index, query, limit) == answers(index, query, 1_000)[:limit]
