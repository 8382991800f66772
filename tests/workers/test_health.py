"""Probes: endpoints that stop answering, answer again, or offer what their manifests do not say."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.outbound import Unreachable
from apps.core.sql import database_now
from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as_system
from apps.workers import manifests, selectors
from apps.workers.manifests import ListedTool
from apps.workers.models import DOWN_AFTER, UP_AFTER, Reach, Reachability, State, Worker, WorkerEvent, pause_after
from apps.workers.services import discovery, health
from tests.workers.factories import NOTHING, add_source, make_manifest, move_clock, register
from tests.workers.servers import A_TEXT, McpServer, make_tool, serving

SOON = timedelta(seconds=5)


def announce(caller: Caller, server: McpServer, worker_id: str = "loud") -> None:
    """The server registers itself with what it offers."""
    tools = [{"name": tool.name, "input_schema": tool.input_schema} for tool in server.tools]
    register(caller, make_manifest(worker_id, endpoint=server.endpoint, tools=tools, side_effects=NOTHING))


def find(caller: Caller, server: McpServer) -> None:
    add_source(caller, server.endpoint, worker_id="loud", side_effects=NOTHING)
    discovery.discover()


def beat(caller: Caller, status: str = "healthy") -> str:
    done = health.heartbeat(caller=caller, worker_id="loud", status=status, current_load=0, available=True)
    return done.status


def state_after(pause: timedelta) -> str:
    move_clock(pause)
    health.probe()
    return selectors.worker_named("loud").state


def claims() -> list[Worker]:
    return health.claim(Worker.objects.registered(), at="probe_at", fence="probe_fence")


def events(kind: str = "state") -> list[str]:
    return [event.detail for event in WorkerEvent.objects.filter(kind=kind).order_by("id")]


@given(st.lists(st.booleans()))
def test_verdict_changes_after_enough_probes_in_a_row(answers: list[bool]) -> None:
    standing = Reachability(Reach.UNKNOWN)
    for number, answered in enumerate(answers, start=1):
        before, standing = standing, standing.after(answered=answered)
        if standing.reach == before.reach or (before.reach == Reach.UNKNOWN and answered):
            continue
        needed = UP_AFTER if answered else DOWN_AFTER
        assert answers[number - needed : number] == [answered] * needed


@given(st.sampled_from(Reach), st.integers(0, DOWN_AFTER - 1), st.booleans())
def test_equal_probes_settle_every_verdict(reach: Reach, against: int, answered: bool) -> None:
    standing = Reachability(reach, against)

    for _ in range(max(UP_AFTER, DOWN_AFTER)):
        standing = standing.after(answered=answered)

    assert standing == Reachability(Reach.UP if answered else Reach.DOWN)


@given(st.lists(st.booleans(), min_size=1))
def test_agreeing_probe_resets_the_count(answers: list[bool]) -> None:
    standing = Reachability(Reach.UP)
    for answered in answers:
        standing = standing.after(answered=answered)

    assert standing.after(answered=standing.reach == Reach.UP).against == 0


@given(st.integers(1, 100))
def test_pauses_grow_up_to_five_minutes(faults: int) -> None:
    assert timedelta(seconds=5) <= pause_after(faults) <= pause_after(faults + 1) <= timedelta(minutes=5)


def test_dead_discovered_worker_is_offline_in_time(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    find(as_kee, shouter)
    health.probe()
    assert selectors.worker_named("loud").state == "ready"
    shouter.stop()

    states = [state_after(health.PROBE_EVERY), state_after(SOON), state_after(SOON)]

    assert states == ["ready", "ready", "offline"]
    assert health.PROBE_EVERY + 2 * SOON <= health.OFFLINE_AFTER
    assert selectors.workers().workers == []
    assert events()[-1].startswith("ready to offline: it does not answer: unreachable")


def test_discovered_worker_needs_no_heartbeat(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    find(as_kee, shouter)

    for _ in range(4):
        assert state_after(health.OFFLINE_AFTER) == "ready"
        with acting_as_system("test"):
            assert health.mark_late() == 0


def test_two_answers_bring_a_worker_back(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    find(as_kee, shouter)
    Worker.objects.update(reach=Reach.DOWN, state=State.OFFLINE)
    health.probe()

    assert selectors.worker_named("loud").state == "offline"
    assert state_after(SOON) == "ready"
    assert events()[-1] == "offline to ready: it answers"


def test_heartbeat_does_not_hide_a_dead_endpoint(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    announce(as_kee, shouter)
    health.probe()
    shouter.stop()
    for pause in (health.PROBE_SELDOM, SOON, SOON):
        state_after(pause)

    epoch = selectors.epochs()
    assert beat(as_kee) == "offline"
    assert selectors.epochs() == epoch


def test_answer_does_not_replace_a_heartbeat(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    announce(as_kee, shouter)
    beat(as_kee)
    health.probe()
    move_clock(health.OFFLINE_AFTER + SOON)
    with acting_as_system("test"):
        health.mark_late()

    assert state_after(timedelta(0)) == "offline"
    assert beat(as_kee) == "ready"


def test_maintenance_survives_lost_probes(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    announce(as_kee, shouter)
    health.probe()
    beat(as_kee, "maintenance")
    shouter.stop()

    for pause in (health.PROBE_SELDOM, SOON, SOON):
        move_clock(pause)
        beat(as_kee, "maintenance")
        assert state_after(timedelta(0)) == "maintenance"


def test_quarantined_worker_is_not_probed(as_kee: Caller, shouter: McpServer) -> None:
    find(as_kee, shouter)
    Worker.objects.update(state=State.QUARANTINED)
    shouter.asked.clear()

    assert health.probe() == 0
    assert not shouter.asked


def test_disabled_principal_takes_its_workers_offline(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    find(as_kee, shouter)
    register(as_kee, make_manifest("beating"))
    health.probe()
    beat(as_kee)
    shouter.asked.clear()
    owner = Principal.objects.filter(pk=as_kee.principal_id)
    owner.update(disabled_at=database_now())

    health.mark_late()

    assert {one.worker_id: one.status for one in selectors.workers(available_only=False).workers} == {
        "loud": "offline",
        "beating": "offline",
    }
    assert events()[-1] == "ready to offline: Kee is disabled"
    assert state_after(health.PROBE_SELDOM) == "offline"
    assert not shouter.asked
    owner.update(disabled_at=None)
    assert beat(as_kee) == "ready"


def test_only_discovered_workers_live_by_probes(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    find(as_kee, shouter)
    announce(as_kee, shouter, "beating")
    registered_at = database_now()
    move_clock(health.PROBE_SELDOM)
    health.probe()

    heard = dict(Worker.objects.values_list("worker_id", "last_heartbeat_at"))
    assert heard == {"loud": database_now(), "beating": registered_at}


def test_drift_degrades_until_registered(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    announce(as_kee, shouter)
    health.probe()

    shouter.tools = [make_tool("shout").model_copy(update={"input_schema": {**A_TEXT, "required": []}})]
    assert state_after(health.PROBE_SELDOM) == "offline"
    assert beat(as_kee) == "degraded"
    assert state_after(health.PROBE_EVERY) == "degraded"
    assert beat(as_kee) == "degraded"

    assert events("drifted") == ["shout takes other arguments"]
    assert selectors.catalogue().offers[0].barred == "the worker is degraded"
    announce(as_kee, shouter)
    assert selectors.worker_named("loud").state == "ready"
    assert state_after(health.PROBE_EVERY) == "ready"


def test_healthy_worker_is_probed_seldom(as_kee: Caller, shouter: McpServer) -> None:
    def next_probe() -> timedelta:
        health.probe()
        worker = Worker.objects.get()
        assert worker.probed_at is not None
        return worker.probe_at - worker.probed_at

    move_clock(timedelta(0))
    announce(as_kee, shouter)
    assert next_probe() == health.PROBE_SELDOM

    tools, shouter.tools = shouter.tools, [make_tool("whisper")]
    move_clock(health.PROBE_SELDOM)
    assert next_probe() == health.PROBE_EVERY
    shouter.tools = tools
    move_clock(health.PROBE_EVERY)
    assert next_probe() == health.PROBE_SELDOM


@pytest.mark.parametrize(
    ("beats", "expected"), [(True, [5, 5, *[30] * 6]), (False, [5, 5, 30, 30, 60, 120, 240, 300, 300])]
)
def test_lost_worker_is_probed_ever_more_seldom(
    as_kee: Caller, shouter: McpServer, *, beats: bool, expected: list[int]
) -> None:
    move_clock(timedelta(0))
    announce(as_kee, shouter)
    shouter.stop()
    pauses = []
    for _ in expected:
        if beats:
            beat(as_kee)
        health.probe()
        worker = Worker.objects.get()
        assert worker.probed_at is not None
        pauses.append((worker.probe_at - worker.probed_at).total_seconds())
        move_clock(worker.probe_at - worker.probed_at)

    assert pauses == expected
    announce(as_kee, shouter)
    assert Worker.objects.get().probe_at == database_now()


def test_registration_does_not_hide_a_dead_endpoint(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    announce(as_kee, shouter)
    health.probe()
    shouter.stop()
    states = []
    for _ in range(DOWN_AFTER + 2):
        move_clock(2 * SOON)
        announce(as_kee, shouter)
        states.append(state_after(timedelta(0)))

    assert states == ["ready"] * (DOWN_AFTER - 1) + ["offline"] * 3


def test_drifted_discovered_worker_is_asked_at_once(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    find(as_kee, shouter)
    shouter.tools = [make_tool("whisper")]

    assert state_after(health.PROBE_EVERY) == "degraded"
    assert discovery.discover() == 1
    assert selectors.worker_named("loud").state == "ready"
    assert [offer.tool_name for offer in selectors.catalogue().offers] == ["whisper"]
    assert state_after(health.PROBE_EVERY) == "ready"


def test_answer_of_an_old_endpoint_is_ignored(as_kee: Caller, shouter: McpServer) -> None:
    announce(as_kee, shouter)
    (claim,) = claims()
    with serving() as other:
        announce(as_kee, other)

        health.note_probe(claim, Unreachable("gone"))

    assert Worker.objects.get().probed_at is None


def test_outdated_probe_is_not_stored(as_kee: Caller, shouter: McpServer) -> None:
    announce(as_kee, shouter)
    (late,) = claims()
    Worker.objects.update(probe_at="2000-01-01T00:00Z")
    (current,) = claims()

    health.note_probe(late, Unreachable("gone"))
    assert Worker.objects.get().probed_at is None
    health.note_probe(current, Unreachable("gone"))
    assert Worker.objects.get().probe_fault == "unreachable: gone"


def listed(name: str = "shout", **members: object) -> ListedTool:
    given = {"description": "", "input_schema": A_TEXT, "output_schema": None, **members}
    return ListedTool(name=name, claims_read_only=False, claims_closed_world=False, **given)  # type: ignore[arg-type]


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
def test_drift_is_what_breaks_a_caller(now: list[ListedTool], drift: str | None) -> None:
    registered = {"name": "shout", "input_schema": A_TEXT, "output_schema": {"type": "object"}}

    assert manifests.drift([registered], now) == drift
