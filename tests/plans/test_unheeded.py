"""What says how much, when, which of several or by what means, and is taken by no step, is told."""

import pytest

from apps.plans.documents import Plan, PlanStatus
from tests.plans import manifests, wishes
from tests.plans.shelf import make_plan

SERVED = [
    *(wishes.MET_SERVED + wishes.HELD_OUT_SERVED + wishes.LATER_SERVED),
    *(wishes.LAST_MET_SERVED + wishes.LAST_HELD_OUT_SERVED),
]


def notes(plan: Plan) -> list[str]:
    return [said for said in plan.assumptions if "it is done without" in said]


@pytest.mark.parametrize(
    ("intent", "told"),
    [
        ("List the largest file in /var/data", "'largest'"),
        ("List the files in /var/data sorted by size", "'sorted'"),
        ("Index the PDFs in /docs into Elasticsearch", "'elasticsearch'"),
        ("Analyze the security of the Python code in /srv/web with bandit", "'bandit'"),
        ("Analyze the Python repository /srv/web using three linters", "'three linters'"),
    ],
)
def test_a_means_or_a_choice_that_no_step_takes_is_told_and_the_plan_is_not_sure(intent: str, told: str) -> None:
    plan = make_plan(intent, manifests.bundled())

    assert plan.status == PlanStatus.READY
    assert [told in said for said in notes(plan)] == [True]
    assert plan.confidence <= 0.5


def test_a_time_that_no_step_takes_is_told() -> None:
    plan = make_plan("List the files in /var/data that were changed yesterday", manifests.bundled())

    assert ["'yesterday'" in said for said in notes(plan)] == [True]


@pytest.mark.parametrize(
    "intent",
    [
        "Extract the 10 most relevant concepts from the PDFs in /papers",
        "Analyze the sentiment of 'we met three times yesterday, with the largest of smiles'",
        "Find the PDFs in /docs and index them",
    ],
)
def test_what_is_a_value_or_known_to_the_tool_is_not_told(intent: str) -> None:
    plan = make_plan(intent, manifests.bundled())

    assert (plan.status, notes(plan)) == (PlanStatus.READY, [])
    assert plan.confidence > 0.5


def test_no_wish_that_is_served_as_it_is_said_is_told_to_be_done_without_something() -> None:
    assert [(wish, found) for wish, _ in SERVED if (found := notes(make_plan(wish)))] == []
