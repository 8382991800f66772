"""Plans over random registries: many are ready, each is sound, and none uses what a tier forbids."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plans import planner
from apps.plans.catalogue import Catalogue
from apps.plans.documents import Plan, PlanStatus, canonical
from apps.plans.validation import validate
from apps.workers.trust import Tier, effects_of, forbidden_effects
from tests.plans.registries import HARMFUL, INTENTS, ODD, Scene, registries, scenes
from tests.plans.shelf import STRING, make_plan, offer, shape, tool

EXAMPLES = 300


@pytest.fixture
def objections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the planner's own look at its plans has found."""
    found: list[Any] = []

    def spy(*given: Any, **named: Any) -> Any:
        problems = validate(*given, **named)
        found.extend(problems)
        return problems

    monkeypatch.setattr(planner, "validate", spy)
    return found


def worker_steps(plan: Plan) -> list[Any]:
    return [step for step in plan.steps if step.worker_id]


def test_plans_over_random_registries_are_valid_and_many_are_ready(objections: list[Any]) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(scene=scenes())
    def check(scene: Scene) -> None:
        plan = make_plan(scene.intent, scene.catalogue)
        document = plan.document()
        assert validate(document, scene.catalogue) == []
        assert json.loads(canonical(document)) == json.loads(json.dumps(document))
        assert canonical(make_plan(scene.intent, scene.catalogue).document()) == canonical(document)
        seen["ready"] += plan.status == PlanStatus.READY
        seen["of several steps"] += plan.status == PlanStatus.READY and len(worker_steps(plan)) > 1
        seen["handed on"] += plan.status == PlanStatus.READY and any(
            "{{step-" in str(step.params) for step in worker_steps(plan)
        )
        seen["refused"] += plan.status == PlanStatus.NEEDS_ESCALATION

    check()

    assert objections == []
    assert seen["ready"] >= EXAMPLES / 3, seen
    assert seen["of several steps"] >= EXAMPLES / 6, seen
    assert seen["handed on"] >= EXAMPLES / 10, seen
    assert seen["refused"] >= EXAMPLES / 10, seen


@settings(max_examples=100, deadline=None)
@given(intent=INTENTS, catalogue=registries())
def test_any_request_over_any_tools_gives_a_valid_plan(intent: str, catalogue: Catalogue) -> None:
    document = make_plan(intent, catalogue).document()

    assert validate(document, catalogue) == []
    assert json.loads(canonical(document)) == json.loads(json.dumps(document))


def test_barred_offer_is_never_planned() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(scene=scenes())
    def check(scene: Scene) -> None:
        plan = make_plan(scene.intent, scene.catalogue)
        barred = {(one.worker_id, one.tool_uid) for one in scene.catalogue.offers if one.barred}
        used = {
            (worker_id, step.tool_uid)
            for step in worker_steps(plan)
            for worker_id in (step.worker_id, *(step.fallback_worker_ids or ()))
        }
        assert not barred & used
        uids = {uid for _, uid in barred}
        seen["planned beside a barred offer"] += any(uid in uids for _, uid in used)
        seen["refused for want of permission"] += any(one["kind"] == "permission" for one in plan.missing or ())

    check()

    assert seen["planned beside a barred offer"] >= EXAMPLES / 10, seen
    assert seen["refused for want of permission"] >= EXAMPLES / 10, seen


@settings(max_examples=100, deadline=None)
@given(intent=ODD, tier=st.sampled_from([Tier.VERIFIED, Tier.SANDBOX, Tier.UNTRUSTED]))
def test_forbidden_tool_is_never_planned_however_well_it_matches(intent: str, tier: Tier) -> None:
    echo = tool(intent[:100], intent, {"type": "object"}, {"type": "object"})
    other = tool("count_words", "Count the words of a text.", shape("text", text=STRING), shape(words=STRING))
    effects = effects_of(HARMFUL)
    bad = offer(
        "eager", echo, effects=effects, tier=tier, barred=f"forbidden: {sorted(forbidden_effects(effects, tier))}"
    )
    catalogue = Catalogue(1, (echo, other), (bad, offer("counter", other)))

    plan = make_plan(intent, catalogue)

    assert forbidden_effects(effects, tier)
    assert "eager" not in [step.worker_id for step in plan.steps]
