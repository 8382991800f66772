"""What steps recommend to be known is known where the DeleGate's policy says so, and else recommended in the report."""

import json
from typing import Any

import pytest

from apps.executions.envelopes import recommended
from apps.executions.models import Execution
from apps.memory import services as memory
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from tests.executions.making import REPORT, advance, begin, do_task, make_worker, queue_step, report
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller
from tests.memory.subjects import observations

LEARNED = "The nightly build of the parser fails on Mondays."
ASKED = {"promote": True, "domain": "builds", "observation": LEARNED, "reasoning": "Seen thrice", "confidence": 0.9}


@pytest.fixture
def coder(tenant: Tenant) -> Caller:
    """A DeleGate that asks another, the tenant's root, to carry something out."""
    return make_caller(tenant, "coder", Kind.DELEGATE)


def allow(author: Caller) -> None:
    with author.acting():
        memory.set_promotion_policy(
            author=author,
            delegate=DELEGATE,
            domains=["builds"],
            confidence_threshold=0.8,
            requires_novel=True,
            now=T0,
        )


def carried_out(owner: Caller, tenant: Tenant, server: WorkerServer, asked: Any = ASKED) -> Execution:
    """An execution of which a worker's result recommends something."""
    make_worker(owner, server)
    execution = begin(owner, [queue_step("sum"), {**REPORT, "depends_on": ["sum"]}])
    advance(execution)
    do_task(make_caller(tenant, "hands", Kind.WORKER), {"summary": "Done.", "promotion_recommendation": asked})
    advance(execution)
    return execution


def told(owner: Caller, execution: Execution) -> dict[str, Any]:
    (found,) = [one for one in report(owner, execution).results if one.step_id == "sum"]
    return dict(found.promotion_recommendation or {})


def known(caller: Caller) -> list[tuple[str, str, list[str]]]:
    with caller.acting():
        rows = observations().exclude(domain="delegation_trace").order_by("pk")
        return [(row.text, row.author.name, row.evidence) for row in rows.select_related("author")]


def test_what_the_policy_allows_is_known_when_the_execution_ends(
    kee: Caller, coder: Caller, tenant: Tenant, server: WorkerServer
) -> None:
    allow(kee)
    execution = carried_out(coder, tenant, server)

    done = report(coder, execution)
    assert done.status == "complete"
    evidence = [f"plan:{execution.plan_id}", f"exec:{execution.ref}", "step:sum"]
    assert known(kee) == [(LEARNED, DELEGATE, evidence)]
    outcome = told(coder, execution)
    assert (outcome["promote"], outcome["verdict"]) == (False, "promoted")
    with kee.acting():
        assert outcome["promoted_as"] == observations().get(text=LEARNED).ref


def test_without_a_policy_it_is_a_recommendation_in_the_report(
    kee: Caller, coder: Caller, tenant: Tenant, server: WorkerServer
) -> None:
    execution = carried_out(coder, tenant, server)

    outcome = told(coder, execution)
    assert {name: outcome[name] for name in ASKED} == ASKED
    assert (outcome["verdict"], outcome["promoted_as"]) == ("no_policy", None)
    assert known(kee) == []
    assert report(coder, execution).next_actions[-1:] == [
        "Recommend in your report what sum recommends: No policy lets this DeleGate promote anything."
    ]


@pytest.mark.parametrize(("kind", "verb"), [(Kind.DELEGATE, "memory_promote"), (Kind.AI, "memory_store")])
def test_what_its_owner_learned_is_stored_by_the_verb_that_its_owner_may_use(
    tenant: Tenant, server: WorkerServer, kind: Kind, verb: str
) -> None:
    owner = make_caller(tenant, "coder", kind)

    (action,) = report(owner, carried_out(owner, tenant, server, None)).next_actions[-1:]

    assert [name for name in ("memory_promote", "memory_store") if name in action] == [verb]


@pytest.mark.parametrize(
    ("change", "verdict"), [({"domain": "people"}, "other_domain"), ({"confidence": 0.79}, "not_sure_enough")]
)
def test_outside_of_the_policy_it_is_a_recommendation(
    coder: Caller, tenant: Tenant, server: WorkerServer, change: dict[str, Any], verdict: str
) -> None:
    kee = make_caller(tenant)
    allow(kee)
    outcome = told(coder, carried_out(coder, tenant, server, {**ASKED, **change}))
    assert (outcome["promote"], outcome["verdict"]) == (True, verdict)
    assert known(kee) == []


def test_what_is_known_already_is_neither_stored_nor_recommended(
    kee: Caller, coder: Caller, tenant: Tenant, server: WorkerServer
) -> None:
    allow(kee)
    with kee.acting():
        memory.store_observation(author=kee, text=LEARNED, domain="builds", now=T0)
    outcome = told(coder, carried_out(coder, tenant, server))
    assert (outcome["promote"], outcome["verdict"]) == (False, "known_already")
    assert len(known(kee)) == 1


def test_what_an_agent_carries_out_itself_it_promotes_itself(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    allow_nobody = told(kee, carried_out(kee, tenant, server))
    assert (allow_nobody["promote"], allow_nobody["verdict"]) == (True, "no_policy")


@pytest.mark.parametrize(
    "asked",
    [
        None,
        7,
        [],
        {},
        {**ASKED, "promote": "yes"},
        {**ASKED, "promote": False},
        {**ASKED, "domain": " "},
        {**ASKED, "domain": 3},
        {**ASKED, "observation": "", "reasoning": ""},
        {**ASKED, "confidence": 1.1},
        {**ASKED, "confidence": True},
        {**ASKED, "confidence": "high"},
    ],
)
def test_what_is_no_recommendation_is_none(asked: Any) -> None:
    assert recommended({"promotion_recommendation": asked}) is None
    assert recommended(asked) is None


def test_a_recommendation_is_bounded_and_says_how_sure_it_is() -> None:
    asked = recommended({"promotion_recommendation": {"promote": True, "domain": "d" * 999, "reasoning": "r" * 9_999}})
    assert asked is not None
    assert (len(asked["domain"]), len(asked["observation"]), asked["confidence"]) == (100, 2_000, 0.8)
    assert json.dumps(asked)
