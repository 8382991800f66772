"""A plan that needs a confirmation or an input: one call makes the plan that takes its place, exactly once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.errors import Conflict
from apps.plans import selectors, services
from apps.plans.models import Plan
from apps.plans.proposals import Evidence, Lack, Missing, Value
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts import selectors as receipts
from apps.workers import services as workers
from tests.factories import T0, ask, make_token
from tests.plans.making import STRING, create, shape
from tests.waiters import at_once
from tests.workers.factories import NOTHING, make_manifest

COLOURS = {"type": "string", "enum": ["red", "green"]}
TAKES = shape("wall", "colour", wall=STRING, colour=COLOURS)
PAINT = {"name": "paint_wall", "description": "Paint a wall.", "input_schema": TAKES}
SPRAY = {**PAINT, "name": "spray_wall", "description": "Spray a wall."}
GUESS = Value(value="the north one", evidence=Evidence.CUT, text="the north one")
TWINS = {"step_id": "step-1", "tool_name": "paint_wall", "text": "Which tool?", "choices": ["paint_wall", "spray_wall"]}


@pytest.fixture
def painters(kee: Caller) -> Caller:
    with acting_as(kee):
        workers.register(caller=kee, original=make_manifest("painter", tools=[PAINT, SPRAY], side_effects=NOTHING))
    return kee


def made(caller: Caller, *questions: dict[str, Any], **params: Any) -> Plan:
    """A plan to paint a wall."""
    with acting_as(caller):
        more = {"questions": questions}
        return create(caller, ("paint_wall", params), intent='Paint "the north one" red', proposal=more)


def to_confirm(caller: Caller) -> Plan:
    return made(caller, wall=GUESS, colour="red")


def confirm(caller: Caller, plan_id: str) -> Plan:
    with acting_as(caller):
        return services.settle(caller=caller, plan_id=plan_id, answers=None, now=T0)


def answer(caller: Caller, plan_id: str, **answers: Any) -> Plan:
    told = {name.replace("_", "-"): value for name, value in answers.items()}
    with acting_as(caller):
        return services.settle(caller=caller, plan_id=plan_id, answers=told, now=T0)


def test_only_a_ready_plan_is_owed(painters: Caller) -> None:
    old = to_confirm(painters)
    with acting_as(painters):
        assert receipts.obligations(owed_by=painters.principal_id).obligations == []
        assert not selectors.plan(old.plan_id).can_be_begun

    new = confirm(painters, old.plan_id)

    with acting_as(painters):
        assert [one.receipt_id for one in receipts.obligations(owed_by=painters.principal_id).obligations] == [
            new.receipt_id
        ]
        chain = [link.event_type for link in receipts.chain(new.receipt_id)]
    assert chain == ["task_received", "plan_created", "plan_created"]


def test_confirmed_plan_has_the_same_steps_and_no_guess(painters: Caller) -> None:
    old = to_confirm(painters).document

    new = confirm(painters, old["plan_id"]).document

    assert (new["status"], new["replaces"]) == ("ready", old["plan_id"])
    assert "unsure" not in new
    assert new["steps"][0]["provenance"]["wall"] == {"source": "confirmed", "text": "the north one"}
    sure = [{**step, "provenance": None} for step in new["steps"]]
    assert sure == [{**step, "provenance": None} for step in old["steps"]]


def test_confirmed_plan_does_not_use_what_failed_before(painters: Caller) -> None:
    with acting_as(painters):
        workers.register(caller=painters, original=make_manifest("second", tools=[PAINT], side_effects=NOTHING))
    old = to_confirm(painters)
    failed: dict[str, Any] = {"failed_step": "step-1", "reason": "gone", "was_waiting": False}
    with acting_as(painters):
        again = services.replan(caller=painters, plan_id=old.plan_id, **failed, now=T0)
    assert again.status == "needs_confirmation"

    new = confirm(painters, again.plan_id).document

    assert new["excluded"] == again.document["excluded"]
    assert new["steps"][0]["worker_id"] == again.document["steps"][0]["worker_id"]


def test_answer_fills_the_param_and_keeps_all_else(painters: Caller) -> None:
    old = made(painters, wall="north").document
    assert old["status"] == "needs_input"

    new = answer(painters, old["plan_id"], question_1="green").document

    assert (new["status"], new["replaces"]) == ("ready", old["plan_id"])
    assert new["steps"][0]["params"] == {"wall": "north", "colour": "green"}
    assert new["steps"][0]["provenance"] == {"wall": {"source": "quoted"}, "colour": {"source": "answer"}}


def test_question_without_an_answer_is_asked_again(painters: Caller) -> None:
    old = made(painters)

    half = answer(painters, old.plan_id, question_1="north").document

    assert [(one["question_id"], one["param"]) for one in half["questions"]] == [("question-1", "colour")]
    assert answer(painters, half["plan_id"], question_1="red").status == "ready"


def test_answer_that_names_a_tool_plans_the_intent_with_it(painters: Caller) -> None:
    spray = {**TWINS, "choices": ["paint_wall"]}
    old = made(painters, spray, wall="north").document
    assert old["questions"][0]["choices"] == ["paint_wall"]

    new = answer(painters, old["plan_id"], question_1="paint_wall", question_2="green").document

    assert new["replaces"] == old["plan_id"]
    assert "green" not in str(new), "the answer may be for another step than those that are found now"
    assert list(new["settled_tools"].values()) == [old["partial_plan"]["steps"][0]["tool_uid"]]


def test_plan_whose_worker_has_gone_is_refused_with_the_reason(painters: Caller) -> None:
    old = to_confirm(painters)
    with acting_as(painters):
        workers.unregister(caller=painters, worker_id="painter")

    assert confirm(painters, old.plan_id).document["status"] == "needs_escalation"


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_confirmations_one_is_refused(painters: Caller) -> None:
    old = to_confirm(painters)
    first, second = at_once(*[partial(confirm, painters, old.plan_id)] * 2)

    made, refused = (second, first) if isinstance(first, Conflict) else (first, second)
    assert refused.extra["successor_plan_id"] == made.plan_id
    with acting_as(painters):
        assert Plan.objects.count() == 2


def asks(caller: Caller) -> Plan:
    return made(caller, wall="n")


def asks_for_a_tool(caller: Caller) -> Plan:
    return made(caller, TWINS, wall="n", colour="red")


def ready(caller: Caller) -> Plan:
    return made(caller, wall="n", colour="red")


def replaced(caller: Caller) -> Plan:
    old = to_confirm(caller)
    confirm(caller, old.plan_id)
    return old


Refusal = tuple[Callable[[Caller], Plan], str, Any, int, str, str]
REFUSALS: list[Refusal] = [
    (ready, "confirm", {}, 409, "not_to_confirm", ""),
    (replaced, "confirm", {}, 409, "plan_replaced", ""),
    (to_confirm, "answer", {"answers": {"question-1": "red"}}, 409, "not_to_answer", ""),
    (asks, "answer", {"answers": {}}, 422, "invalid", "/answers"),
    (asks, "answer", {"answers": {"q": 1}}, 422, "unknown_question", "/answers/q"),
    (asks, "answer", {"answers": {"question-1": "blue"}}, 422, "answer_refused", "/answers/question-1"),
    (asks, "answer", {"answers": {"question-1": 2**60}}, 422, "answer_refused", "/answers/question-1"),
    (asks_for_a_tool, "answer", {"answers": {"question-1": ["x"]}}, 422, "answer_refused", "/answers/question-1"),
]


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_no_answer_is_refused_by_code_and_place(tenant: Tenant, painters: Caller, case: Refusal) -> None:
    make, verb, body, status, code, pointer = case
    old = make(painters)

    came, refusal = ask("POST", f"plans/{old.plan_id}/{verb}", make_token(tenant, "Kee"), body)

    assert (came, refusal["code"]) == (status, code)
    assert [one["pointer"] for one in refusal.get("errors", ())] == ([pointer] if pointer else [])
    assert ask("POST", f"plans/{old.plan_id}/{verb}", make_token(tenant, "Lee"), body)[0] in {404, 422}


def test_operator_confirms_and_answers_in_the_console(tenant: Tenant, painters: Caller, console: Client) -> None:
    old, asking = to_confirm(painters), asks(painters)
    with acting_as(painters):
        rows = {one.plan_id: one.pk for one in Plan.objects.all()}

    for plan_id, verb, given in ((old.plan_id, "confirm", ""), (asking.plan_id, "answer", '{"question-1": "green"}')):
        form = {"_form_submitted": "on", "reason": "asked Kee", "answers": given}
        console.post(reverse(f"admin:plans_plan_{verb}", args=[rows[plan_id]]), form)

    with acting_as(painters):
        replaced = Plan.objects.filter(status="ready").values_list("replaces__plan_id", flat=True)
        assert set(replaced) == {old.plan_id, asking.plan_id}


def test_page_of_a_plan_shows_its_steps_and_what_it_needs_as_text(painters: Caller, console: Client) -> None:
    missing = (Missing(kind=Lack.TOOL, detail="No tool bakes a <cake>."), Missing(kind=Lack.BUDGET, detail="Too dear."))
    with acting_as(painters):
        refused = create(painters, ("paint_wall", {"wall": "n", "colour": "red"}), proposal={"missing": missing})

    page = console.get(reverse("admin:plans_plan_change", args=[refused.pk])).content.decode()

    for said in (
        "a &lt;cake&gt;. Register an MCP worker",
        "<li>Too dear.</li>",
        "<p>step-1: paint_wall at painter</p>",
    ):
        assert said in page
