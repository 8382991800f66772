"""Planning with a learned model, in memory: what it may not do, that it repeats itself, and its calibration."""

import random
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
from django.conf import settings as django_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plans import learning
from apps.plans.calibration import calibration_error, error_by_chance
from apps.plans.catalogue import Catalogue
from apps.plans.choosing import Memo, choose_tools, look
from apps.plans.clauses import read
from apps.plans.documents import PlanStatus, canonical
from apps.plans.history import SHIPPED_SURENESS, Arrays, Past
from apps.plans.planner import plan
from apps.plans.ranking import Ranker
from apps.plans.validation import validate
from benchmarks.data import Data, own
from tests.plans.registries import INTENTS, VERBS
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
    ranker,
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


def test_word_of_past_plans_finds_its_tool() -> None:
    assert steps("Zorp the newsstand about tea", learned(FULL)) == ["search_web"]


@pytest.mark.parametrize("about", ["tea", "coffee", "stones"])
def test_barred_tool_is_not_planned_whatever_was_learned(about: str) -> None:
    assert "delete_file" not in steps(f"Zorp the leftovers about {about}", learned(FULL))


def test_writing_tool_is_not_planned_by_faint_likeness() -> None:
    offers = tuple(replace(one, barred=None) for one in (*EXAMPLE_OFFERS, *MORE_OFFERS))
    free = Catalogue(9, EXAMPLE_TOOLS + MORE_TOOLS, offers)

    assert "delete_file" not in steps("Tell me about tea", learned(free))


def test_prohibition_outweighs_past_plans() -> None:
    assert "search_web" not in steps("Zorp the newsstand about tea, but do not search anything", learned(FULL))


@pytest.mark.ci
def test_stored_model_plans_the_same_bytes_in_another_process() -> None:
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
        cwd=django_settings.BASE_DIR,
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


@pytest.mark.parametrize("most", [100, 300])
def test_confidence_of_plans_is_calibrated(most: int) -> None:
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


def test_model_of_another_version_gets_the_shipped_sureness() -> None:
    known = learned(FULL).history
    assert known is not None
    older = replace(known.arrays, sureness=(-0.9, 1.6, -1.6, 0.9, 0.6, -0.3))

    assert Arrays.loads(older.dumps()).sureness == SHIPPED_SURENESS
    assert Arrays.loads(known.arrays.dumps()).sureness == known.arrays.sureness != SHIPPED_SURENESS


@pytest.mark.parametrize(
    "intent", ["Do not zorp the newsstand about tea", "If it rains, zorp the newsstand", "?", "tea"]
)
def test_request_for_nothing_is_refused_whatever_was_learned(intent: str) -> None:
    made = plan(make_request(intent), learned(FULL))

    assert made.status == PlanStatus.NEEDS_ESCALATION
    assert made.missing


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
def test_plan_with_the_memo_is_the_plan_without(rank: Ranker, pair: tuple[str, str]) -> None:
    memo = Memo()
    for intent in (*pair, *pair):
        assert canonical(plan(make_request(intent), rank, memo).document()) == canonical(
            plan(make_request(intent), rank).document()
        )


@pytest.mark.parametrize("rank", [ranker(FULL), learned(FULL)], ids=["by words", "by past plans"])
@settings(max_examples=150)
@given(intent=INTENTS)
def test_request_asked_twice_is_planned_alike(rank: Ranker, intent: str) -> None:
    memo = Memo()

    plans = [canonical(plan(make_request(intent), rank, memo).document()) for _ in range(2)]

    assert plans == [canonical(plan(make_request(intent), rank).document())] * 2


def test_memo_finds_the_same_skeleton_in_the_same_epoch() -> None:
    memo = Memo().at("first")
    plan(make_request("Analyze the codebase at /srv/app"), ranker(FULL), memo)

    assert memo.find(read("Analyze the codebase at /srv/other")) is not None
    assert memo.find(read("Analyze the codebase at /srv/other.png")) is None
    assert memo.find(read("Analyze the code at /srv/other")) is None
    assert memo.at("first").find(read("Analyze the codebase at /srv/other")) is not None
    assert memo.at("second").find(read("Analyze the codebase at /srv/other")) is None


def test_full_memo_drops_its_first_entry() -> None:
    memo = Memo(most=2)
    for name in ("codebase", "repository", "text"):
        plan(make_request(f"Analyze the {name} at /srv/app"), ranker(FULL), memo)

    found = [
        memo.find(read(f"Analyze the {name} at /srv/x")) is not None for name in ("codebase", "repository", "text")
    ]
    assert found == [False, True, True]


def test_calibration_error_is_the_mean_gap() -> None:
    assert calibration_error([(0.75, True), (0.75, False)]) == pytest.approx(0.25)
    assert calibration_error([]) == error_by_chance([]) == 0.0


@pytest.mark.parametrize("many", [100, 1_000])
def test_error_by_chance_is_what_kept_promises_show(many: int) -> None:
    chance = random.Random(5)  # noqa: S311  # no secret
    told = [(p, chance.random() < p) for p in (chance.random() for _ in range(many))]
    shown = [calibration_error([(p, chance.random() < p) for p, _ in told]) for _ in range(200)]

    assert sum(shown) / len(shown) == pytest.approx(error_by_chance(told), rel=0.1)
