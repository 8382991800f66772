"""Health: heartbeats and what they cost, silence, probes of endpoints, and tools that drift from their manifests."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import Tool

from apps.core.errors import Conflict
from apps.core.outbound import Unreachable
from apps.core.sql import database_now
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.workers import manifests, selectors
from apps.workers import services as registry
from apps.workers.models import (
    DOWN_AFTER,
    TRANSITIONS,
    UP_AFTER,
    Reach,
    State,
    Worker,
    WorkerEvent,
    pause_after,
)
from apps.workers.shapes import ListWorkers
from tests.factories import make_caller, pass_time
from tests.workers.factories import ID, NOTHING, add_source, beat, events, make_manifest, offers, refused, register
from tests.workers.servers import A_TEXT, McpServer, make_tool, serving

SOON = timedelta(seconds=5)


def announce(caller: Caller, server: McpServer, worker_id: str = "loud") -> None:
    """The server registers itself with what it offers."""
    tools = [{"name": tool.name, "input_schema": tool.input_schema} for tool in server.tools]
    register(caller, make_manifest(worker_id, endpoint=server.endpoint, tools=tools, side_effects=NOTHING))


def find(caller: Caller, server: McpServer) -> None:
    add_source(caller, server.endpoint, worker_id="loud", side_effects=NOTHING)
    registry.discover()


def mark_late() -> int:
    with acting_as_system("test"):
        return registry.mark_late()


def state_after(pause: timedelta) -> str:
    pass_time(pause)
    registry.probe()
    return selectors.worker_named("loud").state


def due() -> Worker:
    (asked,) = registry.due(Worker.objects.registered(), at="probe_at")
    return asked


# Heartbeats


@pytest.mark.parametrize("source", list(State))
@pytest.mark.parametrize("target", list(State))
def test_states_follow_the_table(source: State, target: State) -> None:
    worker = Worker(worker_id="w", state=source)

    if target in TRANSITIONS[source]:
        worker.move_to(target)
        assert worker.state == target
    else:
        with pytest.raises(Conflict, match="cannot go from"):
            worker.move_to(target)
        assert worker.state == source


def test_silent_worker_is_degraded_then_offline(as_kee: Caller) -> None:
    pass_time()
    register(as_kee, make_manifest(side_effects=NOTHING))

    def state_after(pause: timedelta) -> str:
        pass_time(pause)
        mark_late()
        return selectors.worker_named(ID).state

    assert state_after(registry.LATE_AFTER) == "ready"
    assert state_after(timedelta(microseconds=1)) == "degraded"
    assert selectors.catalogue().offers[0].barred == "the worker is degraded"
    assert state_after(registry.OFFLINE_AFTER) == "offline"
    assert selectors.workers(ListWorkers()).workers == []
    assert beat(as_kee).status == "ready"
    assert selectors.catalogue().offers[0].barred is None
    assert events() == [
        "ready to degraded: no heartbeat",
        "degraded to offline: no heartbeat",
        "offline to ready: the worker says healthy",
    ]


def test_heartbeat_with_news_changes_the_state_and_the_epoch(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    epoch = selectors.epochs()

    assert beat(as_kee).status == "ready"
    assert selectors.epochs() == epoch
    assert [beat(as_kee, status="maintenance").status for _ in range(2)] == ["maintenance"] * 2
    assert selectors.epochs() == (epoch[0] + 1, epoch[1])
    assert Worker.objects.get().state == State.MAINTENANCE


def test_quarantine_outlasts_heartbeat_and_registration(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    Worker.objects.update(state=State.QUARANTINED)

    assert beat(as_kee).status == "quarantined"
    assert beat(as_kee, status="degraded").status == "quarantined"
    assert register(as_kee, make_manifest()).worker.state == "quarantined"


def test_heartbeat_checks_the_owner(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    before = Worker.objects.values().get()
    rival = make_caller(tenant, "rival", Kind.WORKER)

    with acting_as(rival), refused("unknown_worker"):
        beat(rival)
    assert Worker.objects.values().get() == before


def test_late_workers_are_marked_in_transactions_of_few(as_kee: Caller) -> None:
    for number in range(5):
        register(as_kee, make_manifest(f"w{number}"))
    with CaptureQueriesContext(connection) as queries:
        assert registry.mark_late() == 0
    assert len([query for query in queries if "workers_" in query["sql"]]) == 1

    Worker.objects.filter(worker_id="w3").update(last_heartbeat_at=database_now() - registry.OFFLINE_AFTER)

    assert registry.mark_late() == 1
    assert Worker.objects.exclude(state="ready").get().worker_id == "w3"
    Worker.objects.update(last_heartbeat_at=database_now() - 2 * registry.OFFLINE_AFTER)
    with CaptureQueriesContext(connection) as queries:
        assert registry.mark_late(batch=2) == 4
    # Twice the workers, their states, their events and the registry's epoch; then no more workers.
    assert [query["sql"].split()[0] for query in queries if "SAVEPOINT" in query["sql"]] == ["SAVEPOINT", "RELEASE"] * 3
    assert len([query for query in queries if "workers_" in query["sql"]]) == 9


# Probes


@given(st.lists(st.booleans()))
def test_verdict_changes_after_enough_probes_in_a_row(answers: list[bool]) -> None:
    worker = Worker()
    for number, answered in enumerate(answers, start=1):
        before = worker.reach
        worker.note_answer(answered=answered)
        if worker.reach == before or (before == Reach.UNKNOWN and answered):
            continue
        needed = UP_AFTER if answered else DOWN_AFTER
        assert answers[number - needed : number] == [answered] * needed


@given(st.sampled_from(Reach), st.integers(0, DOWN_AFTER - 1), st.booleans())
def test_equal_probes_settle_every_verdict(reach: Reach, against: int, answered: bool) -> None:
    worker = Worker(reach=reach, probes_against=against)

    for _ in range(max(UP_AFTER, DOWN_AFTER)):
        worker.note_answer(answered=answered)

    assert (worker.reach, worker.probes_against) == (Reach.UP if answered else Reach.DOWN, 0)


@given(st.lists(st.booleans(), min_size=1))
def test_agreeing_probe_resets_the_count(answers: list[bool]) -> None:
    worker = Worker(reach=Reach.UP)
    for answered in answers:
        worker.note_answer(answered=answered)

    worker.note_answer(answered=worker.reach == Reach.UP)
    assert worker.probes_against == 0


@given(st.integers(1, 100))
def test_pauses_grow_up_to_five_minutes(faults: int) -> None:
    assert timedelta(seconds=5) <= pause_after(faults) <= pause_after(faults + 1) <= timedelta(minutes=5)


def test_dead_discovered_worker_is_offline_in_time(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    find(as_kee, shouter)
    for _ in range(3):
        assert state_after(registry.OFFLINE_AFTER) == "ready"  # it needs no heartbeat
        assert mark_late() == 0
    shouter.stop()

    states = [state_after(registry.PROBE_EVERY), state_after(SOON), state_after(SOON)]

    assert states == ["ready", "ready", "offline"]
    assert registry.PROBE_EVERY + 2 * SOON <= registry.OFFLINE_AFTER
    assert selectors.workers(ListWorkers()).workers == []
    assert events()[-1].startswith("ready to offline: it does not answer: unreachable")


def test_two_answers_bring_a_worker_back(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    find(as_kee, shouter)
    Worker.objects.update(reach=Reach.DOWN, state=State.OFFLINE)
    registry.probe()

    assert selectors.worker_named("loud").state == "offline"
    assert state_after(SOON) == "ready"
    assert events()[-1] == "offline to ready: it answers"


def test_heartbeat_and_registration_do_not_hide_a_dead_endpoint(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    announce(as_kee, shouter)
    registry.probe()
    shouter.stop()
    states = []
    for _ in range(DOWN_AFTER + 2):
        pass_time(2 * SOON)
        announce(as_kee, shouter)
        states.append(state_after(timedelta(0)))

    assert states == ["ready"] * (DOWN_AFTER - 1) + ["offline"] * 3
    epoch = selectors.epochs()
    assert beat(as_kee, "loud").status == "offline"
    assert selectors.epochs() == epoch


def test_answer_does_not_replace_a_heartbeat(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    announce(as_kee, shouter)
    beat(as_kee, "loud")
    registry.probe()
    pass_time(registry.OFFLINE_AFTER + SOON)
    mark_late()

    assert state_after(timedelta(0)) == "offline"
    assert beat(as_kee, "loud").status == "ready"


def test_maintenance_survives_lost_probes(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    announce(as_kee, shouter)
    registry.probe()
    beat(as_kee, "loud", "maintenance")
    shouter.stop()

    for pause in (registry.PROBE_SELDOM, SOON, SOON):
        pass_time(pause)
        beat(as_kee, "loud", "maintenance")
        assert state_after(timedelta(0)) == "maintenance"


def test_quarantined_worker_is_not_probed(as_kee: Caller, shouter: McpServer) -> None:
    find(as_kee, shouter)
    Worker.objects.update(state=State.QUARANTINED)
    shouter.asked.clear()

    assert registry.probe() == 0
    assert not shouter.asked


def test_disabled_principal_takes_its_workers_offline(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    find(as_kee, shouter)
    register(as_kee, make_manifest())
    registry.probe()
    shouter.asked.clear()
    owner = Principal.objects.filter(pk=as_kee.principal_id)
    owner.update(disabled_at=database_now())

    mark_late()

    assert dict(Worker.objects.values_list("worker_id", "state")) == {"loud": "offline", ID: "offline"}
    assert events()[-1] == "ready to offline: Kee is disabled"
    assert state_after(registry.PROBE_SELDOM) == "offline"
    assert not shouter.asked
    owner.update(disabled_at=None)
    assert beat(as_kee, "loud").status == "ready"


def test_drift_degrades_until_registered(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    announce(as_kee, shouter)
    registry.probe()

    shouter.tools = [make_tool("shout").model_copy(update={"input_schema": {**A_TEXT, "required": []}})]
    assert state_after(registry.PROBE_SELDOM) == "offline"
    assert beat(as_kee, "loud").status == "degraded"
    assert state_after(registry.PROBE_EVERY) == "degraded"
    assert beat(as_kee, "loud").status == "degraded"

    assert events("drifted") == ["shout takes other arguments"]
    announce(as_kee, shouter)
    assert selectors.worker_named("loud").state == "ready"
    assert state_after(registry.PROBE_EVERY) == "ready"


def test_drifted_discovered_worker_is_asked_at_once(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    find(as_kee, shouter)
    shouter.tools = [make_tool("whisper")]

    assert state_after(registry.PROBE_EVERY) == "degraded"
    assert registry.discover() == 1
    assert selectors.worker_named("loud").state == "ready"
    assert list(offers()) == ["whisper"]


def next_probe() -> timedelta:
    registry.probe()
    worker = Worker.objects.get()
    assert worker.probed_at is not None
    pause = worker.probe_at - worker.probed_at
    pass_time(pause)
    return pause


def test_healthy_worker_is_probed_seldom(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    announce(as_kee, shouter)
    assert next_probe() == registry.PROBE_SELDOM
    tools, shouter.tools = shouter.tools, [make_tool("whisper")]
    assert next_probe() == registry.PROBE_EVERY
    shouter.tools = tools
    assert next_probe() == registry.PROBE_SELDOM


@pytest.mark.parametrize(
    ("beats", "expected"), [(True, [5, 5, *[30] * 6]), (False, [5, 5, 30, 30, 60, 120, 240, 300, 300])]
)
def test_lost_worker_is_probed_ever_more_seldom(
    as_kee: Caller, shouter: McpServer, *, beats: bool, expected: list[int]
) -> None:
    pass_time()
    announce(as_kee, shouter)
    shouter.stop()
    pauses = []
    for _ in expected:
        if beats:
            beat(as_kee, "loud")
        pauses.append(next_probe().total_seconds())

    assert pauses == expected
    announce(as_kee, shouter)
    assert Worker.objects.get().probe_at == database_now()


def test_outdated_probe_is_not_stored(as_kee: Caller, shouter: McpServer) -> None:
    announce(as_kee, shouter)
    late = due()
    Worker.objects.update(probe_at="2000-01-01T00:00Z")
    current = due()

    registry.note_probe(late, Unreachable("gone"))
    assert Worker.objects.get().probed_at is None
    registry.note_probe(current, Unreachable("gone"))
    assert Worker.objects.get().probe_fault == "unreachable: gone"

    Worker.objects.update(probed_at=None, probe_at="2000-01-01T00:00Z")
    current = due()
    with serving() as other:
        announce(as_kee, other)
        registry.note_probe(current, Unreachable("gone"))  # of the old endpoint
    assert Worker.objects.get().probed_at is None
    assert WorkerEvent.objects.filter(kind="state").count() == 0


def listed(name: str = "shout", **members: Any) -> Tool:
    return Tool(**{"name": name, "input_schema": A_TEXT, **members})


@pytest.mark.parametrize(
    ("now", "drift"),
    [
        ([listed()], None),
        ([listed(description="other words"), listed("more")], None),
        ([listed(output_schema={"type": "object"})], None),
        ([listed("other")], "shout is not there any more"),
        ([listed(input_schema={"type": "object"})], "shout takes other arguments"),
        ([listed(output_schema={"type": "object", "required": ["x"]})], "shout answers otherwise"),
    ],
)
def test_drift_is_what_breaks_a_caller(now: list[Tool], drift: str | None) -> None:
    registered = {"name": "shout", "input_schema": A_TEXT, "output_schema": {"type": "object"}}

    assert manifests.drift([registered], now) == drift
