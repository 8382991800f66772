"""Planning with a learned model, in memory: what it may not do however much it has learned, and that it repeats itself."""

import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
from django.conf import settings

from apps.plans import learning
from apps.plans.calibration import calibration_error
from apps.plans.catalogue import Catalogue
from apps.plans.choosing import choose_tools, look
from apps.plans.clauses import read
from apps.plans.documents import PlanStatus, canonical
from apps.plans.history import SHIPPED_SURENESS, Arrays, History, Past
from apps.plans.planner import plan
from apps.plans.ranking import Ranker
from apps.plans.validation import validate
from benchmarks.data import Data, own
from tests.plans.shelf import (
    EXAMPLE_OFFERS,
    EXAMPLE_TOOLS,
    FULL,
    MORE_OFFERS,
    MORE_TOOLS,
    REMOVE,
    TRANSLATE,
    WEB,
    make_request,
    offer,
    tool,
)

TOLD = [
    Past(request=f"Please zorp the {word} about {about}", tools=(one.uid,))
    for one, word in ((REMOVE, "leftovers"), (WEB, "newsstand"), (TRANSLATE, "babel"))
    for about in ("tea", "coffee", "cocoa", "water", "milk", "juice", "wine", "beer")
]


@cache
def learned(catalogue: Catalogue) -> Ranker:
    ranker = Ranker(catalogue)
    history = learning.learn(TOLD, ranker.name, lambda past, history, without: look(past, ranker, history, without))
    ranker.history = history
    return ranker


def steps(intent: str, ranker: Ranker) -> list[str]:
    made = plan(make_request(intent), ranker)
    assert validate(made.document(), ranker.catalogue) == []
    shown = made.partial_plan["steps"] if made.partial_plan is not None else []
    return [step.tool_name for step in made.steps if step.tool_name] + [step["tool_name"] for step in shown]


def test_words_that_only_past_plans_know_find_their_tool() -> None:
    assert steps("Zorp the newsstand about tea", learned(FULL)) == ["search_web"]


def test_what_no_past_plan_knows_is_planned_as_before() -> None:
    assert steps("List the files in /var/log", learned(FULL)) == ["scan_directory"]


@pytest.mark.parametrize("about", ["tea", "coffee", "stones"])
def test_a_tool_that_may_not_be_used_is_never_planned_whatever_was_learned(about: str) -> None:
    assert "delete_file" not in steps(f"Zorp the leftovers about {about}", learned(FULL))


def test_a_tool_that_changes_the_world_is_not_brought_up_by_faint_likeness() -> None:
    offers = tuple(replace(one, barred=None) for one in (*EXAMPLE_OFFERS, *MORE_OFFERS))
    free = Catalogue(9, EXAMPLE_TOOLS + MORE_TOOLS, offers)

    assert "delete_file" not in steps("Tell me about tea", learned(free))


def test_what_the_asker_rules_out_is_not_planned_though_past_plans_did_it() -> None:
    assert "search_web" not in steps("Zorp the newsstand about tea, but do not search anything", learned(FULL))


def test_a_stored_model_plans_the_same_bytes_in_another_process() -> None:
    intent = "Zorp the newsstand about tea, then zorp the babel about coffee"
    script = f"""
import django; django.setup()
from tests.plans.test_learned import learned
from apps.plans.documents import canonical
from apps.plans.history import Arrays, History
from apps.plans.planner import plan
from tests.plans.shelf import FULL, make_request
ranker = learned(FULL)
ranker.history = History(Arrays.loads(ranker.history.arrays.dumps()))
print(canonical(plan(make_request({intent!r}), ranker).document()).hex())
"""
    here = learned(FULL)
    assert here.history is not None
    other = subprocess.run(
        [sys.executable, "-c", script],
        cwd=settings.BASE_DIR,
        env={"DJANGO_SETTINGS_MODULE": "config.settings", "PYTHONHASHSEED": "77", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    assert bytes.fromhex(other.stdout.strip()) == canonical(plan(make_request(intent), here).document())


def taught(most: int) -> tuple[Ranker, Data, dict[str, str]]:
    """A ranker that has learned from the first of the bench's past plans, that data, and the uids of its tools by name."""
    data = own(history=most)
    tools = {
        one["name"]: tool(one["name"], one["description"], one["input_schema"], one["output_schema"])
        for one in data.tools
    }
    ranker = Ranker(Catalogue(1, tools.values(), [offer("worker", one) for one in tools.values()]))
    past = [Past(request=one.request, tools=tuple(tools[name].uid for name in one.nodes)) for one in data.history]
    ranker.history = learning.learn(past, ranker.name, lambda plan, known, without: look(plan, ranker, known, without))
    return ranker, data, {name: one.uid for name, one in tools.items()}


def test_after_a_hundred_plans_steps_are_right_as_often_as_they_promise() -> None:
    ranker, data, uids = taught(100)
    told = []
    for example in data.test:
        used = {uids[name] for name in example.nodes}
        chosen = choose_tools(read(example.request), ranker, ranker.catalogue).chosen
        told += [(one.p, one.tool.uid in used) for one in chosen]

    assert len(told) > 200
    assert calibration_error(told) <= 0.05


@pytest.mark.parametrize("most", [100, 300])
def test_plans_are_right_as_often_as_they_promise_whatever_the_tools_of_the_past_change_in_the_world(most: int) -> None:
    ranker, data, uids = taught(most)
    told = []
    for example in (*data.test, *own().history[300:]):
        choice = choose_tools(read(example.request), ranker, ranker.catalogue)
        told.append(
            (
                choice.confidence or 0.0,
                {one.tool.uid for one in choice.chosen} == {uids[name] for name in example.nodes},
            )
        )

    assert len(told) == 420
    assert calibration_error(told) <= 0.05


def test_a_model_that_was_kept_by_a_version_with_other_signs_of_sureness_is_read_with_what_is_shipped() -> None:
    known = learned(FULL).history
    assert known is not None
    older = replace(known.arrays, sureness=(-0.9, 1.6, -1.6, 0.9, 0.6, -0.3))

    assert Arrays.loads(older.dumps()).sureness == SHIPPED_SURENESS
    assert Arrays.loads(known.arrays.dumps()).sureness == known.arrays.sureness != SHIPPED_SURENESS


def test_a_model_of_one_plan_is_a_model() -> None:
    ranker = Ranker(FULL)
    history = learning.learn(TOLD[:1], ranker.name, lambda past, known, without: look(past, ranker, known, without))

    assert isinstance(history, History)
    assert history.times(REMOVE.uid) == 1


@pytest.mark.parametrize(
    "intent", ["Do not zorp the newsstand about tea", "If it rains, zorp the newsstand", "?", "tea"]
)
def test_a_request_that_asks_for_nothing_is_refused_whatever_was_learned(intent: str) -> None:
    made = plan(make_request(intent), learned(FULL))

    assert made.status == PlanStatus.NEEDS_ESCALATION
    assert made.missing
