"""A tenant in which everything has happened at least once, by the product's own services."""

from datetime import timedelta

from apps.memory import services as memory
from apps.plans import services as plans
from apps.plans.services import PlanRequest
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import post, post_grouped
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.plans.test_stored_plans import FLAGSHIP, register_example_workers
from tests.tasks import making as tasks


def fill(slug: str = "acme") -> Caller:
    """Everything about one agent, Kee."""
    tenant = make_tenant(slug)
    make_token(tenant)
    kee = make_caller(tenant)
    _remember(kee)
    _work(kee, make_caller(tenant, "worker-1", Kind.WORKER))
    with acting_as(kee):
        register_example_workers(kee)
        plans.create_plan(caller=kee, request=PlanRequest(intent=FLAGSHIP), now=T0)
        post(kee, title="Nightly <script>alert(1)</script> run", requires_action=True)
        for number in range(5):
            post_grouped(kee, summary=f"Check {number} is green")
        post_grouped(kee, summary="All checks are green", flush_class="immediate")
        post_grouped(kee, "pr:2", pairs_with="rcpt_not_yet")
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


def _work(kee: Caller, worker: Caller) -> None:
    tasks.make_type(kee)
    tasks.queue(kee, idempotency_key="once")
    tasks.complete(worker, tasks.lease_one(worker), content={"files": 12}, summary="Indexed 12 files")
    tasks.queue(kee)
    tasks.lease_one(worker)
    tasks.queue(kee)
