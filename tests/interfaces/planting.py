"""A tenant in which every operation finds what it is asked for, with a canary in the texts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from apps.core.errors import only
from apps.core.ids import format_ref
from apps.digests import services as digests
from apps.digests.models import Entry
from apps.executions.states import Strategy
from apps.handoff import services as handoffs
from apps.handoff.items import Kind as NoteKind
from apps.handoff.items import Priority
from apps.handoff.services import LeaveHandoff
from apps.memory import services as memory
from apps.plans import services as plans
from apps.plans.proposals import Evidence, Value
from apps.principals import services as principals
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.services import queueing, running
from apps.tasks.shapes import FailTask, LeasedTask, ScheduleTask, TaskError
from apps.workers import services as workers
from tests.delivery.conftest import TOKEN, make_remote, make_webhook, move_away
from tests.digests.makers import post, set_policy
from tests.executions import making as executions
from tests.factories import T0, make_caller, make_principal
from tests.memory.subjects import ALICE, items, observations, plant
from tests.plans.making import create
from tests.tasks import making
from tests.workers.factories import NOTHING, make_manifest

# Where nobody answers.
NOWHERE: Final = "http://127.0.0.1:9"
WORKER: Final = "code-analyzer"
TOOL: Final = "analyze_repository"
LINE: Final = "line"


@dataclass(frozen=True)
class Planted:
    """What there is to ask for, by the names of members, and what single operations are asked instead or besides."""

    tenant: Tenant
    kee: Caller
    canary: str
    known: dict[str, Any] = field(default_factory=dict)
    particular: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, operation: str) -> dict[str, Any]:
        """What an operation is asked with, where it takes a member of this name."""
        return {**self.known, **self.particular.get(operation, {})}

    def know(self, **given: Any) -> None:
        self.known.update(given)

    def ask(self, *operations: str, **given: Any) -> None:
        for operation in operations:
            self.particular.setdefault(operation, {}).update(given)


def plant_everything(slug: str, canary: str) -> Planted:
    """All this in a new tenant, by the product's own doors. Names are the same in every tenant; texts hold the canary."""
    kee = plant(slug, canary=canary)
    with acting_as_system("test"):
        tenant = Tenant.objects.get(slug=slug)
    planted = Planted(tenant, kee, canary)
    parts: tuple[Callable[[Planted], None], ...] = (
        _principals,
        _memory,
        _tasks,
        _workers,
        _plans,
        _executions,
        _elsewhere,
        _inbox,
    )
    for part in parts:
        part(planted)
    return planted


def _principals(planted: Planted) -> None:
    make_principal(planted.tenant, "Lee")
    make_principal(planted.tenant, "coder", Kind.DELEGATE)
    for name in ("reviewer", planted.canary):
        make_principal(planted.tenant, name, Kind.DELEGATE)
    with acting_as(planted.kee):
        kee = Principal.objects.get(pk=planted.kee.principal_id)
        issued = principals.issue_token(principal=kee, scopes=[Scope.INBOX], label=planted.canary, now=T0)
    planted.know(ai_name="Kee", principal_ai="Kee", recipient_ai="Kee", tenant_id=f"TENANT:{planted.tenant.slug}")
    planted.know(token_id=issued.token.pk, new_name="Leo")
    planted.ask("disable_principal", "enable_principal", name="Lee")
    planted.ask("revoke_principal_tokens", name="Kee")


def _memory(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    make_principal(planted.tenant, canary)
    with acting_as(kee):
        memory.set_memory_policy(author=kee, share_with=["Kee", canary], now=T0)
        memory.set_promotion_policy(
            author=kee, delegate="coder", domains=[canary], confidence_threshold=0.5, requires_novel=False, now=T0
        )
        observation, item = observations().latest("pk"), items().latest("pk")
    planted.know(subject_id=ALICE, subject=ALICE, filters={"subject_id": ALICE})
    planted.know(item=f"item:{item.pk}", evidence_observation_ids=[observation.pk], delegate="coder")
    planted.know(query=canary.split("-")[-1])
    planted.ask("memory_read", ref=observation.ref)
    planted.ask("memory_store", supersedes=observation.ref)
    planted.ask("remember_fact", supersedes=f"item:{item.pk}")
    planted.ask("add_subject", subject_id="USER:bob")
    planted.ask("list_memory_relationships", to_concept="b", rel_type="knows")


def _tasks(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    making.make_type(kee, "survey", queue=LINE, schema={"description": canary}, lease_seconds=3600)
    making.make_type(kee, "quiet", queue=canary)
    nightly = ScheduleTask(name="nightly", task_type="survey", params={"said": canary}, every_seconds=86_400)
    with acting_as(kee):
        queueing.set_schedule(caller=kee, draft=nightly)

    def leased() -> LeasedTask:
        making.queue(kee, "survey", {"said": canary})
        return making.lease_one(kee, queues=(LINE,))

    dead, done, large, held = (leased() for _ in range(4))
    error = TaskError(code="broken", message=f"No {canary}")
    with acting_as(kee):
        only([running.fail(worker=kee, failure=FailTask(**making.proof(dead), error=error, retryable=False))])
    making.complete(kee, done, content={"said": canary}, summary=f"Found {canary}")
    making.complete(kee, large, content={"said": [canary] * 9000}, summary=f"Found {canary}")
    waiting = making.queue(kee, "survey", {"said": canary}).task_id
    with acting_as(kee):
        artifact = running.fetch_result(caller=kee, task_id=making.number(large)).result_pointer or ""

    lease = making.proof(held)
    planted.know(task_id=done.task_id, digest=artifact.removeprefix("artifact:"))
    planted.know(task_type="survey", task_types=["survey"], queue=LINE, queues=[LINE], every_seconds=60)
    planted.know(leases=[lease], completions=[lease], releases=[lease])
    planted.ask("complete_task", "fail_task", "heartbeat_task", "release_task", **lease)
    planted.ask("control_task", task_id=held.task_id)
    planted.ask("check_task_status", "task_timeline", "retry_task", task_id=dead.task_id)
    planted.ask("read_task_result", task_id=large.task_id)
    planted.ask("cancel_task", task_id=waiting)
    planted.ask("queue_task", depends_on=[waiting], idempotency_key="once")
    planted.ask("queue_tasks", tasks=[{"task_type": "survey", "depends_on": [waiting]}])
    planted.ask("schedule_task", "remove_schedule", name="nightly")
    planted.ask("register_task_type", name="survey")


def _workers(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    manifest = make_manifest(WORKER, trust={}, endpoint=NOWHERE, side_effects=NOTHING, capabilities=[canary])
    manifest["tools"][0]["description"] += f" Even one of {canary}."
    with acting_as(kee):
        workers.register(caller=kee, original=manifest)
    planted.know(worker_id=WORKER, tool_name=TOOL)
    planted.ask("register_worker", endpoint=NOWHERE, tools=[{"name": TOOL, "input_schema": {"type": "object"}}])
    planted.ask("call_worker_tool", params={"repo_path": "/x"}, mode="async")


def _plans(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    with acting_as(kee):
        plans.set_delegate(tenant_id=kee.tenant_id, delegate_id="reviewer", parent=DELEGATE)
        made = create(kee, (TOOL, {"repo_path": f"/{canary}"}), intent=f"Analyze the repository at /{canary}")
        waiting = executions.make_plan(kee, [_work(canary)], f"Do {canary}")
        guess = Value(value=f"/{canary}", evidence=Evidence.CUT)
        guessed = create(kee, (TOOL, {"repo_path": guess}), intent=f"Analyze {canary}")
        question = {"step_id": "step-1", "tool_name": TOOL, "param": "repo_path", "text": f"Which {canary}?"}
        asks = create(kee, (TOOL, {}), intent=f"Analyze {canary}", proposal={"questions": [question]})
        plan = {name: value for name, value in made.document.items() if name != "plan_hash"}
        submitted = json.dumps(plan).replace(canary, "x")
    planted.ask("create_delegation_plan", "request_plan", intent="Analyze the repository at /x", delegate_id="reviewer")
    planted.ask("get_plan", "replan_plan", plan_id=made.plan_id, failed_step="step-1")
    planted.ask("confirm_plan", plan_id=guessed.plan_id)
    planted.ask("answer_plan", plan_id=asks.plan_id, answers={"question-1": "/x"})
    planted.ask("submit_plan", plan=json.loads(submitted))
    planted.ask("execute_delegation_plan", plan_id=waiting)
    planted.ask("set_delegate", delegate_id="reviewer", parent=DELEGATE)


def _work(canary: str) -> dict[str, Any]:
    """A step that becomes a task."""
    return executions.queue_step("step-1", worker_id=WORKER, tool_name=TOOL, params={"repo_path": f"/{canary}"})


def _executions(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    told = {**executions.REPORT, "report_summary": canary}
    combine = {
        "step_id": "step-2",
        "step_type": "aggregate",
        "aggregate_step_ids": ["step-1"],
        "synthesis_instructions": canary,
        "executor": "principal",
    }
    with acting_as(kee):
        plan_id = executions.make_plan(kee, [_work(canary), combine, told], f"Combine {canary}")
    combining = executions.begin(kee, [], plan_id=plan_id, strategy=Strategy.PROGRESSIVE)
    executions.advance(combining)
    executions.do_task(kee, {"said": canary, "summary": canary})
    executions.advance(combining)
    asking = executions.begin(kee, [{**told, "decision_required": True}])
    executions.advance(asking)
    planted.know(plan_id=plan_id, execution_id=combining.ref, step_id="step-2")
    planted.ask("submit_step_result", result={"found": 1})
    planted.ask("decide_step", execution_id=asking.ref, step_id="report")


def _elsewhere(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    make_remote(kee, f"{NOWHERE}/{canary}", known_as=canary)
    mia = make_caller(planted.tenant, "Mia")
    move_away(kee, mia, remote_name=canary)
    with acting_as(kee):
        post(mia, poster=kee, title=canary, summary=canary)
    wake = make_webhook(kee, f"{NOWHERE}/{canary}").target
    planted.know(target=format_ref("tgt", wake.pk), url=NOWHERE, token=TOKEN)
    planted.ask("put_remote_target", name="north")
    planted.ask("remove_remote_route", recipient_ai="Mia")
    planted.ask("set_remote_route", target="north")


def _inbox(planted: Planted) -> None:
    kee, canary = planted.kee, planted.canary
    note = LeaveHandoff(session="earlier", type=NoteKind.CAUTION, priority=Priority.HIGH, body=canary, project="shop")
    with acting_as(kee):
        for source in ("github", canary):
            digests.set_source(tenant_id=kee.tenant_id, name=source, rate_per_hour=None, groups_by_dedupe_key=True)
            set_policy(kee, source, max_items=3)
        left = handoffs.leave(author=kee, recipient_id=kee.principal_id, note=note, now=T0)
        receipt = Receipt.objects.filter(title=canary, requires_action=True).latest("pk").receipt_id
        entry = Entry.objects.filter(inbox__principal_id=kee.principal_id).latest("pk")
    said = {"recipient_ai": "Kee", "source_system": "github", "event_type": "ci_update", "summary": "x"}
    asked = {**said, "dedupe_key": "github:ci_update:asked:v1", "caused_by_receipt_id": receipt}
    planted.know(receipt_id=receipt, caused_by_receipt_id=receipt, receipt_ids=[left.receipt_id], receipts=[asked])
    planted.know(ref=str(entry), entries=[str(entry)], through=f"{entry}@{entry.sequence}")
    planted.know(source_system="github", since=T0.isoformat(), project="shop", session="earlier")
    planted.ask("inherit", session="later")
    planted.ask(
        *("post_receipt", "post_inbox_receipt", "post_universal_receipt"),
        **asked,
        receipt_id="rcpt_asked",
        pairs_with=receipt,
    )
