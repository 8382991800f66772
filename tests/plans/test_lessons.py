"""What executed plans teach: noted once, learned from by a tick, judged, taken into use, gone back from."""

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.console.metrics import exposition
from apps.core import erasure, ticks
from apps.plans import errors, learning, selectors, services
from apps.plans import shelf as shelves
from apps.plans.catalogue import Tool
from apps.plans.history import Arrays, History, Past, Voiced
from apps.plans.models import LearnedModel, Outcome
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in
from apps.workers.services import registry as workers
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import patterns
from tests.plans.test_stored_plans import FLAGSHIP, create, register_example_workers
from tests.waiters import (
    Other,
    until_somebody_waits_for_this_transaction,
)
from tests.workers.factories import make_manifest

NOTHING = {"filesystem": "none", "network": "none", "execution": "none"}
WIDGETS = ["alder", "birch", "cedar", "maple"]
PLAIN = [f"inspect_{name}" for name in WIDGETS]


def register_plain_tools(caller: Caller, worker_id: str = "plain", names: Sequence[str] = PLAIN) -> dict[str, str]:
    """Tools that change nothing, whose names the requests below do not say; their uids by name."""
    tools = [
        {
            "name": name,
            "description": f"Does {name}.",
            "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
            "output_schema": {"type": "object", "properties": {}},
        }
        for name in names
    ]
    registered = workers.register(caller=caller, original=make_manifest(worker_id, tools=tools, side_effects=NOTHING))
    return {tool.name: tool.uid for tool in registered.tools}


def pasts(uids: dict[str, str], count: int) -> list[Past]:
    """Requests in words of their own: each tool has a nickname that only past plans know."""
    nicknames = dict(
        zip((uids[name] for name in sorted(uids)), ["quibble", "frobnicate", "zorp", "wibble"], strict=True)
    )
    order = [uids[name] for name in sorted(uids)]
    found = []
    for number in range(count):
        first, second = order[number % 4], order[(number + 1) % 4]
        request = f"Please {nicknames[first]} lot{number}, then {nicknames[second]} what is left"
        found.append(Past(request=request, tools=(first, second), links=frozenset({(first, second)})))
    return found


def no_names(_uid: str) -> frozenset[str]:
    return frozenset()


def names_in(made: services.MadePlan) -> list[str]:
    steps = made.document["steps"]
    if made.document["status"] != "ready":
        steps = made.document["partial_plan"]["steps"]
    return [step["tool_name"] for step in steps if step.get("tool_name")]


@pytest.fixture
def taught(tenant: Tenant, kee: Caller) -> Caller:
    """A tenant whose planner has learned from sixty past plans."""
    with acting_as(kee):
        create(kee, "hello")
        uids = register_plain_tools(kee)
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(uids, 60), now=T0)
    services.learn(tenant_id=tenant.pk, now=T0)
    return kee


def test_outcome_has_the_finished_tools_and_their_links(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)

    noted = services.record_outcome(
        plan_id=made.plan_id, completed={"step-1", "step-2", "step-3"}, succeeded=True, now=T0
    )

    steps = {step["step_id"]: step.get("tool_uid") for step in made.document["steps"]}
    assert noted is not None
    assert noted.tools == [steps["step-1"], steps["step-3"]]
    assert noted.links == [[steps["step-1"], steps["step-3"]]]
    assert (noted.request, noted.weight) == (FLAGSHIP, 1.0)


def test_failed_plan_counts_less(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)

    noted = services.record_outcome(plan_id=made.plan_id, completed={"step-1"}, succeeded=False, now=T0)

    assert noted is not None
    assert (len(noted.tools), noted.links) == (1, [])
    assert noted.weight < 1


def test_plan_has_one_outcome_and_none_if_nothing_ran(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    first, second = create(as_kee), create(as_kee)
    for _ in range(2):
        services.record_outcome(plan_id=first.plan_id, completed={"step-1"}, succeeded=True, now=T0)

    assert services.record_outcome(plan_id=second.plan_id, completed=(), succeeded=False, now=T0) is None
    assert Outcome.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_words_of_past_plans_are_planned(taught: Caller) -> None:
    with acting_as(taught):
        made = create(taught, "Please frobnicate lot7, then zorp what is left")

    assert names_in(made) == ["inspect_birch", "inspect_cedar"]
    assert made.document["planner_version"].endswith(".1")


@pytest.mark.django_db(transaction=True)
def test_lessons_stay_in_their_tenant(taught: Caller) -> None:
    other = make_caller(make_tenant("other"), "Ann", Kind.AI)
    with acting_as(other):
        register_plain_tools(other)
        made = create(other, "Please frobnicate lot7, then zorp what is left")
        assert LearnedModel.objects.count() == Outcome.objects.count() == 0

    assert made.document["status"] == "needs_escalation"


@pytest.mark.django_db(transaction=True)
def test_tick_learns_from_enough_new_outcomes(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        create(kee, "hello")
        uids = register_plain_tools(kee)
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(uids, 49), now=T0)
    ticks.run("plans.learn")
    with acting_as(kee):
        assert LearnedModel.objects.count() == 0
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(uids, 1), now=T0)
    ticks.run("plans.learn")
    ticks.run("plans.learn")

    with acting_as(kee):
        assert [(model.number, model.learned_from) for model in LearnedModel.objects.all()] == [(1, 50)]


@pytest.mark.django_db(transaction=True)
def test_outcomes_after_the_last_learned_one_are_new(
    tenant: Tenant, taught: Caller, django_assert_num_queries: Any
) -> None:
    def note(number: int) -> None:
        with acting_as(taught):
            uids = {name: f"{number:032x}" for number, name in enumerate(WIDGETS)}
            services.take_over_history(tenant_id=tenant.pk, plans=pasts(uids, number), now=T0)

    def tenants() -> list[int]:
        with acting_as_system("test"), django_assert_num_queries(1):
            return selectors.tenants_with_lessons()

    with acting_as(taught):
        model = LearnedModel.objects.in_use().get()
        assert (model.learned_from, model.last_outcome) == (60, Outcome.objects.latest("pk").pk)
    assert tenants() == []
    note(4)
    assert tenants() == []
    note(1)
    assert tenants() == [tenant.pk]
    with acting_as_system("test"):
        LearnedModel.objects.update(learned_from=1_000_000)
    note(44)
    assert tenants() == []
    note(1)
    assert tenants() == [tenant.pk]


@pytest.mark.django_db(transaction=True)
def test_failure_of_one_tenant_does_not_hold_up_others(
    tenant: Tenant, kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_caller(make_tenant("other"), "Ann", Kind.AI)
    for caller in (kee, other):
        with acting_as(caller):
            create(caller, "hello")
            uids = register_plain_tools(caller)
            services.take_over_history(tenant_id=caller.tenant_id, plans=pasts(uids, 50), now=T0)
    learn = services.learn

    def broken(*, tenant_id: int, now: datetime) -> LearnedModel | None:
        if tenant_id == tenant.pk:
            raise ValueError("lessons of another age")
        return learn(tenant_id=tenant_id, now=now)

    monkeypatch.setattr(services, "learn", broken)
    with pytest.raises(ExceptionGroup) as failed:
        ticks.run("plans.learn")

    assert [str(one) for one in failed.value.exceptions] == ["lessons of another age"]
    with acting_as(other):
        assert LearnedModel.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_worse_model_is_not_used(tenant: Tenant, taught: Caller) -> None:
    with acting_as(taught):
        uids = {one.name: one.uid for one in _tools(taught)}
        # So many lies about the same requests that the truth of the last tenth is drowned.
        truths = pasts(uids, 66)
        lies = [Past(request=plan.request, tools=tuple(reversed(list(uids.values())))[:1]) for plan in pasts(uids, 600)]
        services.take_over_history(tenant_id=tenant.pk, plans=[*lies, *truths], now=T0)

    made = services.learn(tenant_id=tenant.pk, now=T0)

    assert made is not None
    assert made.node_f1 is not None
    assert made.node_f1_before is not None
    assert made.node_f1 < made.node_f1_before
    assert made.state == LearnedModel.State.REJECTED
    with acting_as(taught):
        assert list(LearnedModel.objects.in_use().values_list("number", flat=True)) == [1]


@pytest.mark.django_db(transaction=True)
def test_first_model_worse_than_the_words_is_not_used(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        create(kee, "hello")
        uids = register_plain_tools(kee, names=["count_otters", "weigh_barrels"])
        said = [("Count the otters", uids["count_otters"]), ("Weigh the barrels", uids["weigh_barrels"])]
        lies = [Past(request=said[n % 2][0], tools=(said[(n + 1) % 2][1],)) for n in range(54)]
        truths = [Past(request=request, tools=(uid,)) for request, uid in said * 3]
        services.take_over_history(tenant_id=tenant.pk, plans=[*lies, *truths], now=T0)

    made = services.learn(tenant_id=tenant.pk, now=T0)

    assert made is not None
    assert (made.node_f1_before, made.state) == (1.0, LearnedModel.State.REJECTED)
    with acting_as(kee):
        assert not LearnedModel.objects.in_use().exists()


@pytest.mark.django_db(transaction=True)
def test_calibration_error_is_a_metric(taught: Caller) -> None:
    with acting_as(taught):
        error = LearnedModel.objects.get().calibration_error

    assert error is not None
    assert 0 <= error <= 1
    with acting_as_system("metrics"):
        assert selectors.calibration_error() == error
    assert f"gatehouse_planner_calibration_error {error}".encode() in exposition()


@pytest.mark.django_db(transaction=True)
def test_model_before_can_be_taken_back(tenant: Tenant, taught: Caller) -> None:
    with acting_as(taught):
        with pytest.raises(errors.NoEarlierModel):
            services.go_back(tenant_id=tenant.pk, number=1)
        uids = {one.name: one.uid for one in _tools(taught)}
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(uids, 80), now=T0)
    second = services.learn(tenant_id=tenant.pk, now=T0)
    assert second is not None
    assert second.state == LearnedModel.State.IN_USE

    with acting_as(taught):
        assert services.go_back(tenant_id=tenant.pk, number=2).number == 1
        with pytest.raises(errors.NoEarlierModel):
            services.go_back(tenant_id=tenant.pk, number=2)
        made = create(taught, "Please frobnicate lot7, then zorp what is left")

    assert made.document["planner_version"].endswith(".1")


@pytest.mark.django_db(transaction=True)
def test_model_that_is_being_emptied_is_not_taken_back(tenant: Tenant, taught: Caller) -> None:
    with acting_as(taught):
        uids = {one.name: one.uid for one in _tools(taught)}
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(uids, 80), now=T0)
    services.learn(tenant_id=tenant.pk, now=T0)

    def go_back() -> None:
        with acting_as(taught):
            services.go_back(tenant_id=tenant.pk, number=2)

    with acting_as_system("test"):
        assert services.unlearn(tenant_id=tenant.pk, taught_at=T0) == 2
        other = Other(go_back)
        until_somebody_waits_for_this_transaction()
    assert isinstance(other.ends(), errors.NoEarlierModel)


@pytest.mark.django_db(transaction=True)
def test_lessons_of_a_tool_hold_for_its_next_version(tenant: Tenant, taught: Caller) -> None:
    with acting_as(taught):
        tools = [
            {
                "name": f"inspect_{name}",
                "description": f"Inspects {name}, in another edition.",
                "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
            }
            for name in WIDGETS
        ]
        workers.register(caller=taught, original=make_manifest("plain", tools=tools, side_effects=NOTHING))
        assert names_in(create(taught, "Please frobnicate lot7, then zorp what is left")) == []
    services.learn(tenant_id=tenant.pk, now=T0)

    with acting_as(taught):
        made = create(taught, "Please frobnicate lot7, then zorp what is left")
    assert names_in(made) == ["inspect_birch", "inspect_cedar"]


@pytest.mark.django_db(transaction=True)
def test_old_plans_count_less_than_new_ones(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        create(kee, "hello")
        uids = sorted(register_plain_tools(kee).values())
        for age, uid in ((720, uids[0]), (0, uids[1])):
            plans = [Past(request="Please frobnicate the lot", tools=(uid,)) for _ in range(6)]
            services.take_over_history(tenant_id=tenant.pk, plans=plans, now=T0 - timedelta(days=age))
    services.learn(tenant_id=tenant.pk, now=T0)

    with acting_in(tenant.pk, "looking"), shelves.held(tenant_id=tenant.pk) as held:
        history = held.ranker.history
        assert history is not None
        heard = history.hear("Please frobnicate the lot", ["frobnicate the lot"])
        (affinity,) = history.affinities(heard, uids[:2])
    assert affinity[uids[1]] > affinity[uids[0]]


@pytest.mark.django_db(transaction=True)
def test_frequent_links_are_patterns_in_memory(taught: Caller) -> None:
    with acting_as(taught):
        texts = list(patterns().filter(domain="delegation").order_by("name").values_list("text", flat=True))

    assert texts[0].startswith("Often inspect_alder is followed by inspect_birch: in 15 of 30 plans")
    assert len(texts) == 4


@pytest.mark.django_db(transaction=True)
def test_stored_model_is_the_same(taught: Caller) -> None:
    with acting_as(taught):
        body = bytes(LearnedModel.objects.get().body)

    arrays = Arrays.loads(body)
    again = History(Arrays.loads(arrays.dumps()))
    first = History(arrays)
    request = "Please wibble lot3"

    def voices(history: History) -> list[Voiced]:
        heard = history.hear(request, [request])
        return history.voices(heard, {}, history.words(heard, no_names), no_names)

    assert voices(again) == voices(first)
    assert voices(first)


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_models_one_is_in_use(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        create(kee, "hello")
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(register_plain_tools(kee), 20), now=T0)
    barrier, failures = threading.Barrier(2), []

    def learn() -> None:
        from django.db import connection  # noqa: PLC0415

        try:
            barrier.wait()
            services.learn(tenant_id=tenant.pk, now=T0)
        except Exception as failure:  # noqa: BLE001
            failures.append(failure)
        finally:
            connection.close()

    threads = [threading.Thread(target=learn) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with acting_as(kee):
        assert not failures
        assert LearnedModel.objects.in_use().count() == 1
        assert LearnedModel.objects.count() == 2


def _tools(caller: Caller) -> list[Tool]:
    with shelves.held(tenant_id=caller.tenant_id) as held:
        return list(held.ranker.catalogue.tools)


def _words(caller: Caller) -> list[bool]:
    """Of each model whether the word is among what it knows; an empty one knows nothing."""
    with acting_as(caller):
        bodies = [bytes(model.body) for model in LearnedModel.objects.order_by("number")]
    return [bool(body) and any("quibbl" in term for term in Arrays.loads(body).vocabulary) for body in bodies]


def _forget(caller: Caller, request: str) -> None:
    """Erase the requests that say this."""
    with acting_as_system("test"), erasure.redacting():
        for one in Outcome.objects.filter(request__contains=request).values_list("request", flat=True):
            erasure.erase(caller.tenant_id, one)


@pytest.mark.django_db(transaction=True)
def test_forgotten_request_empties_models_and_the_rest_is_learned_anew(tenant: Tenant, taught: Caller) -> None:
    services.learn(tenant_id=tenant.pk, now=T0 + timedelta(days=1))
    assert _words(taught) == [True, True]
    with acting_as(taught):
        create(taught, "hello")  # this process holds the model from here on

    _forget(taught, "quibble")

    assert _words(taught) == [False, False]
    with acting_as(taught):
        assert not LearnedModel.objects.in_use().exists()
        assert create(taught, "hello").document["planner_version"].endswith(".0")
        with pytest.raises(errors.NoEarlierModel):
            services.go_back(tenant_id=tenant.pk, number=2)
    with acting_as_system("test"):
        assert selectors.tenants_with_lessons() == [tenant.pk]
    made = services.learn(tenant_id=tenant.pk, now=T0 + timedelta(days=2))
    assert made is not None
    assert (made.number, made.state) == (3, "in_use")
    assert _words(taught) == [False, False, False]


@pytest.mark.django_db(transaction=True)
def test_model_from_before_a_forgotten_request_stays(tenant: Tenant, taught: Caller) -> None:
    with acting_as(taught):
        one = Past(request="USER:eve", tools=("t",))
        services.take_over_history(tenant_id=tenant.pk, plans=[one], now=T0 + timedelta(days=1))

    _forget(taught, "USER:eve")

    with acting_as(taught):
        assert LearnedModel.objects.in_use().count() == 1
    assert _words(taught) == [True]


@pytest.mark.django_db(transaction=True)
def test_model_learned_during_a_forget_is_dropped(tenant: Tenant, kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    with acting_as(kee):
        create(kee, "hello")
        services.take_over_history(tenant_id=tenant.pk, plans=pasts(register_plain_tools(kee), 10), now=T0)
    learn = learning.learn

    def slowly(*given: Any) -> History:
        learned = learn(*given)
        _forget(kee, "quibble")
        return learned

    monkeypatch.setattr(learning, "learn", slowly)
    assert services.learn(tenant_id=tenant.pk, now=T0) is None
    assert _words(kee) == []
