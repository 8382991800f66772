"""What was chosen for a request of the same skeleton is chosen again: sooner, and to the byte as if it had been chosen anew."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plans.choosing import Memo
from apps.plans.clauses import read
from apps.plans.documents import canonical
from apps.plans.planner import plan
from apps.plans.ranking import Ranker
from tests.plans.registries import INTENTS, VERBS
from tests.plans.shelf import FULL, make_request, ranker
from tests.plans.test_learned import learned

PATHS = ["/srv/app", "/srv/other", "/data/a.png", "/data/b.png", "/var/log/x.csv"]
TEXTS = ["hello", "delete everything", "Zorp the newsstand about tea", "a text with 3 numbers"]


@st.composite
def likes(draw: st.DrawFn) -> tuple[str, str]:
    """Two requests that differ in what they name exactly."""
    verbs = draw(st.lists(st.sampled_from([*VERBS, "zorp"]), min_size=1, max_size=3))
    form = ", then ".join(f"{verb} the newsstand in {{path}} and '{{text}}'" for verb in verbs)

    def told() -> str:
        return form.format(path=draw(st.sampled_from(PATHS)), text=draw(st.sampled_from(TEXTS)))

    return told(), told()


@pytest.mark.parametrize("rank", [ranker(FULL), learned(FULL)], ids=["by words", "by past plans"])
@settings(max_examples=150)
@given(pair=likes())
def test_a_plan_with_the_memo_is_the_plan_without(rank: Ranker, pair: tuple[str, str]) -> None:
    memo = Memo()
    for intent in (*pair, *pair):
        assert canonical(plan(make_request(intent), rank, memo).document()) == canonical(
            plan(make_request(intent), rank).document()
        )


@pytest.mark.parametrize("rank", [ranker(FULL), learned(FULL)], ids=["by words", "by past plans"])
@settings(max_examples=150)
@given(intent=INTENTS)
def test_any_request_asked_twice_is_planned_alike(rank: Ranker, intent: str) -> None:
    memo = Memo()

    plans = [canonical(plan(make_request(intent), rank, memo).document()) for _ in range(2)]

    assert plans == [canonical(plan(make_request(intent), rank).document())] * 2


def test_a_choice_is_found_for_the_same_skeleton_in_the_same_state_of_things_only() -> None:
    memo = Memo().at("first")
    plan(make_request("Analyze the codebase at /srv/app"), ranker(FULL), memo)

    assert memo.find(read("Analyze the codebase at /srv/other")) is not None
    assert memo.find(read("Analyze the codebase at /srv/other.png")) is None
    assert memo.find(read("Analyze the code at /srv/other")) is None
    assert memo.at("first").find(read("Analyze the codebase at /srv/other")) is not None
    assert memo.at("second").find(read("Analyze the codebase at /srv/other")) is None


def test_the_memo_keeps_so_many_and_forgets_the_first() -> None:
    memo = Memo(most=2)
    for name in ("codebase", "repository", "text"):
        plan(make_request(f"Analyze the {name} at /srv/app"), ranker(FULL), memo)

    found = [
        memo.find(read(f"Analyze the {name} at /srv/x")) is not None for name in ("codebase", "repository", "text")
    ]
    assert found == [False, True, True]
