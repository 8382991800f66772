"""A tenant in which everything has happened at least once, by the product's own services."""

from datetime import timedelta

from django.db import connection
from django.db.models import F

from apps.digests import services as digests
from apps.handoff import services as handoffs
from apps.handoff.items import Kind as ItemKind
from apps.handoff.items import Priority
from apps.handoff.services import LeaveHandoff
from apps.memory import services as memory
from apps.memory.states import ItemType
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks.models import QueueHistory
from apps.tasks.services import operating, queueing
from apps.tasks.shapes import BudgetInput, Rate, ScheduleTask
from tests.delivery.conftest import make_remote, make_webhook, move_away
from tests.digests.makers import post, post_grouped, set_policy
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.memory import subjects
from tests.plans import making as plans
from tests.tasks import making as tasks


def fill(slug: str = "acme") -> Caller:
    """Everything about one agent, Kee."""
    tenant = make_tenant(slug)
    make_token(tenant)
    kee = make_caller(tenant)
    make_webhook(kee, "https://agent.example/wake")
    _remember(kee)
    _work(kee, make_caller(tenant, "worker-1", Kind.WORKER))
    with acting_as(kee):
        plans.register_example_workers(kee)
        plans.create(kee)
        digests.set_source(tenant_id=kee.tenant_id, name="github", rate_per_hour=500, groups_by_dedupe_key=False)
        set_policy(kee, "github", max_items=30)
        note = LeaveHandoff(
            session="s-1", type=ItemKind.LEARNING, priority=Priority.LOW, body="<b>bold</b>", project="web"
        )
        handoffs.leave(author=kee, recipient_id=kee.principal_id, note=note, now=T0)
        post(kee, title="Nightly <script>alert(1)</script> run", requires_action=True)
        for number in range(5):
            post_grouped(kee, summary=f"Check {number} is green")
        post_grouped(kee, summary="All checks are green", flush_class="immediate")
        post_grouped(kee, "pr:2", pairs_with="rcpt_not_yet")
    _write_away(kee, make_caller(tenant, "Lee North"))
    return kee


def _remember(kee: Caller) -> None:
    with acting_as(kee):
        older = memory.store_observation(author=kee, text="It is <b>slow</b>.", domain="ci", now=T0)
        memory.store_observation(author=kee, text="It is quick.", supersedes=older.ref, now=T0 + timedelta(days=1))
        memory.store_concept(author=kee, name="Python", concept_type="language", aliases=["py"], now=T0)
        memory.add_relationship(author=kee, from_concept="code-analyzer", to_concept="py", rel_type="reads", now=T0)
        memory.update_pattern(
            author=kee, category="ci", pattern_name="mondays", pattern_text="Builds are slow.", confidence=0.9, now=T0
        )
        memory.record_session(principal=kee, conversation_id="c-1", title="Build times", now=T0)
        _remember_somebody(kee)


def _remember_somebody(kee: Caller) -> None:
    subjects.add(kee, display_name="<b>Alice</b>", preferences={"detail_level": "high"})
    for town in ("Berlin", "Paris"):
        subjects.remember(kee, f"Lives in {town}", slot="home")
    subjects.remember(kee, "Asks twice", type=ItemType.USER_PATTERN)
    subjects.envelope(kee)
    memory.record_session(principal=kee, conversation_id="c-2", subject_id=subjects.ALICE, summary="Moving.", now=T0)
    memory.set_memory_policy(author=kee, fact_days=60, now=T0)


def _write_away(kee: Caller, lee: Caller) -> None:
    make_remote(kee, "https://north.example")
    move_away(kee, lee)
    with acting_as(kee):
        post(lee, poster=kee, title="For <b>Lee</b>")


def _work(kee: Caller, worker: Caller) -> None:
    tasks.make_type(kee)
    tasks.make_type(kee, "by turns", queue="fair")
    tasks.set_queue(kee, "fair", concurrency=5, rate=Rate(leases=100, per_seconds=60), fair=True)
    tasks.queue(kee, "by turns")
    tasks.lease_one(worker, queues=("fair",))
    tasks.queue(kee, idempotency_key="once")
    tasks.complete(worker, tasks.lease_one(worker), content={"files": 12}, summary="Indexed 12 files")
    tasks.queue(kee)
    held = tasks.lease_one(worker, host="build-7")
    tasks.queue(kee)
    tasks.queue(kee, depends_on=[held.task_id], budget=BudgetInput(tokens=1000, cost_usd=0.5))
    with acting_as(kee):
        queueing.set_schedule(caller=kee, draft=ScheduleTask(name="nightly", task_type="index", cron="0 3 * * *"))
    _keep_history()


def _keep_history() -> None:
    """The minute in which something ended is kept when it is over."""
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', (now() + interval '75 seconds')::text, true)")
        operating.keep_history()
        QueueHistory.objects.update(minute_at=F("minute_at") - timedelta(minutes=5))
        cursor.execute("select set_config('gatehouse.now', '', true)")
