"""The mutants. Whoever rewrites mutated code moves its mutant to the new code."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A defect: the text that it replaces in a file, and the tests of which one must fail."""

    name: str
    breaks: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    changes_schema: bool = False
    """It is in a migration, so the test database is created anew."""


MUTANTS: Final = (
    # Tasks
    Mutant(
        name="task-fencing-token",
        breaks="The holder of an earlier run can end the next run of the same task.",
        file="apps/tasks/sql.py",
        text="        h.fencing_token = g.fencing_token and h.holder_id = coalesce",
        replacement="        h.holder_id = coalesce",
        tests=("tests/tasks/test_fencing_tokens.py",),
    ),
    Mutant(
        name="task-token",
        breaks="A lease token proves the lease of any task.",
        file="apps/tasks/lease_tokens.py",
        text="if not proved or named != task_id:",
        replacement="if not proved:",
        tests=("tests/tasks/test_fencing_tokens.py",),
    ),
    Mutant(
        name="task-claim",
        breaks="A claim gives out a task that somebody holds.",
        file="apps/tasks/sql.py",
        text="c.holder_id is null and c.ready_at <= gatehouse_now()\n              and c.ready_at >= %(floor)s",
        replacement="c.ready_at <= gatehouse_now()\n              and c.ready_at >= %(floor)s",
        tests=("tests/tasks/test_lease.py",),
    ),
    Mutant(
        name="task-strict-lease",
        breaks="A strict task can be completed after its lease has expired.",
        file="apps/tasks/sql.py",
        text="        and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())))\n",
        replacement="        ))\n",
        tests=("tests/tasks/test_lease.py",),
    ),
    Mutant(
        name="task-completed-once",
        breaks="A second call with another result is answered as if it were the first.",
        file="apps/tasks/services/running.py",
        text="if bytes(first_digest) != digest:",
        replacement="if not digest:",
        tests=("tests/tasks/test_ending.py",),
    ),
    Mutant(
        name="task-idempotency",
        breaks="An idempotency key answers the first task for another request.",
        file="apps/tasks/services/queueing.py",
        text="if bytes(first.request_digest) != digest:",
        replacement="if not digest:",
        tests=("tests/tasks/test_queue.py",),
    ),
    Mutant(
        name="task-dependency",
        breaks="A task is ready although one that it depends on has failed.",
        file="apps/tasks/sql.py",
        text="where r.status = 'succeeded' or h.task_id is null\n",
        replacement="where r.status <> 'canceled' or h.task_id is null\n",
        tests=("tests/tasks/test_dependencies.py",),
    ),
    Mutant(
        name="task-budget",
        breaks="A budget whose last token is used is not spent.",
        file="apps/tasks/sql.py",
        text="b.spent_tokens + o.tokens >= b.max_tokens",
        replacement="b.spent_tokens + o.tokens > b.max_tokens",
        tests=("tests/tasks/test_budgets.py",),
    ),
    # Receipts
    Mutant(
        name="receipt-dedupe",
        breaks="A used dedupe key with other content is answered as a repetition.",
        file="apps/receipts/services.py",
        text="if taken.content_digest == content_digest:",
        replacement="if taken.content_digest:",
        tests=("tests/receipts/test_facts.py",),
    ),
    Mutant(
        name="receipt-recipient",
        breaks="A principal can read a receipt that it neither received nor posted.",
        file="apps/receipts/selectors.py",
        text="if principal_id not in {found.recipient_id, found.poster_id}:",
        replacement="if principal_id == 0:",
        tests=("tests/receipts/test_facts.py",),
    ),
    Mutant(
        name="receipt-immutable",
        breaks="The database accepts changes to a recorded receipt.",
        file="apps/core/rls.py",
        text="if (to_jsonb(new) - free) is distinct from (to_jsonb(old) - free) then",
        replacement="if false then",
        tests=("tests/receipts/test_facts.py",),
        changes_schema=True,
    ),
    Mutant(
        name="receipt-obligation",
        breaks="A stranger closes an obligation.",
        file="apps/receipts/sql.py",
        text="else closer.poster_id in (owed.debtor_id, owed.creditor_id) or {_FROM_THERE} end\n",
        replacement="else true end\n",
        tests=("tests/receipts/test_facts.py",),
    ),
    # Digests
    Mutant(
        name="digest-as-of",
        breaks="An ack takes an entry that was superseded before the reader looked.",
        file="apps/digests/sql.py",
        text="acked_at is null and superseded_by_seq > %(as_of)s",
        replacement="acked_at is null and superseded_by_seq is not null",
        tests=("tests/digests/test_rules.py",),
    ),
    Mutant(
        name="digest-ack-boundary",
        breaks="An ack takes entries behind the one that it names.",
        file="apps/digests/services.py",
        text='"upto": min(anchor.sequence, as_of),',
        replacement='"upto": as_of,',
        tests=("tests/digests/test_rules.py",),
    ),
    Mutant(
        name="digest-lock",
        breaks="The inbox row is read without its lock.",
        file="apps/digests/sql.py",
        text='LOCK: Final = f"select {_INBOX} from digests_inbox where principal_id = %s for no key update"',
        replacement='LOCK: Final = f"select {_INBOX} from digests_inbox where principal_id = %s"',
        tests=("tests/digests/test_races.py",),
    ),
    Mutant(
        name="digest-superseded",
        breaks="A read shows superseded snapshots.",
        file="apps/digests/sql.py",
        text="and acked_at is null and superseded_by_seq is null and sequence > %(after)s {source}",
        replacement="and acked_at is null and sequence > %(after)s {source}",
        tests=("tests/digests/test_rules.py",),
    ),
    Mutant(
        name="digest-due",
        breaks="Each further receipt puts off the flush of its buffer.",
        file="apps/digests/sql.py",
        text="coalesce(t.flush_due_at, gatehouse_now() + run.patience) end",
        replacement="gatehouse_now() + run.patience end",
        tests=("tests/digests/test_rules.py",),
    ),
    Mutant(
        name="digest-narrow",
        breaks="An ack of a part leaves no snapshot of the rest.",
        file="apps/digests/services.py",
        text="narrowed = [one for one in remainders if touched[one.thread_id].visible]",
        replacement="narrowed = [one for one in remainders if not touched[one.thread_id].visible]",
        tests=("tests/digests/test_rules.py",),
    ),
    # Principals
    Mutant(
        name="tenant-wall",
        breaks="The application's role sees the rows of all tenants.",
        file="apps/core/rls.py",
        text="using (%2$I = gatehouse_tenant()) with check (%2$I = gatehouse_tenant())', part, tenant);",
        replacement="using (true) with check (true)', part, tenant);",
        tests=("tests/principals/test_tenancy.py",),
        changes_schema=True,
    ),
    Mutant(
        name="token-expiry",
        breaks="An expired token is accepted.",
        file="apps/principals/selectors.py",
        text="if revoked_at or disabled_at or (now and expires_at and _moment(expires_at) <= now):",
        replacement="if revoked_at or disabled_at:",
        tests=("tests/principals/test_life.py",),
    ),
    Mutant(
        name="worker-scopes",
        breaks="A worker's token may queue tasks.",
        file="apps/principals/scopes.py",
        text="Kind.WORKER: CREATES_WORK,",
        replacement="Kind.WORKER: frozenset(),",
        tests=("tests/principals/test_life.py",),
    ),
    Mutant(
        name="scope",
        breaks="An operation answers a token without its scope.",
        file="apps/core/operations.py",
        text="    if not declared.visible_to(caller):\n        raise MissingScope(",
        replacement="    if caller is None:\n        raise MissingScope(",
        tests=("tests/interfaces/test_every_operation.py", "-k", "tool and scope"),
    ),
    # Core
    Mutant(
        name="outbound-guard",
        breaks="A private IPv4 address inside an IPv6 address is called.",
        file="apps/core/outbound.py",
        text="return not address.is_site_local and (inner is None or _is_public(inner))",
        replacement="return not address.is_site_local",
        tests=("tests/core/test_outbound.py",),
    ),
    Mutant(
        name="strict-json",
        breaks="A body that has a key twice is accepted.",
        file="apps/core/strict_json.py",
        text=", object_pairs_hook=_unique)",
        replacement=")",
        tests=("tests/core/test_schemas.py",),
    ),
    Mutant(
        name="sealing",
        breaks="What an earlier key has sealed can't be opened.",
        file="apps/core/sealing.py",
        text="for key in settings.SEALING_KEYS]\n    )",
        replacement="for key in settings.SEALING_KEYS[:1]]\n    )",
        tests=("tests/core/test_sealing.py",),
    ),
    Mutant(
        name="pagination",
        breaks="A cursor with a number over 64 bits reaches the database.",
        file="apps/core/ids.py",
        text="not 0 <= position < 2**63:",
        replacement="position < 0:",
        tests=("tests/core/test_schemas.py",),
    ),
    # MCP workers
    Mutant(
        name="worker-signature",
        breaks="A signature counts for another manifest.",
        file="apps/workers/trust.py",
        text='if header.get("kid") != key_id or found.payload != signed:',
        replacement='if header.get("kid") != key_id or not signed:',
        tests=("tests/workers/test_signatures.py",),
    ),
    Mutant(
        name="worker-ceiling",
        breaks="A worker is trusted beyond the ceiling of its key.",
        file="apps/workers/trust.py",
        text="if _RANK[claimed] <= _RANK[ceiling]:",
        replacement="if _RANK[claimed] >= 0:",
        tests=("tests/workers/test_registry.py",),
    ),
    Mutant(
        name="worker-quarantine",
        breaks="A quarantined worker ends its quarantine by a heartbeat.",
        file="apps/workers/services.py",
        text="if worker.state in {state, State.QUARANTINED}:",
        replacement="if worker.state == state:",
        tests=("tests/workers/test_health.py",),
    ),
    # Executions
    Mutant(
        name="execution-claim",
        breaks="A step takes the result of a call whose claim another process has taken over.",
        file="apps/executions/services.py",
        text="or step.status != StepStatus.CALLING or step.attempts != claim.fencing_token:",
        replacement="or step.status != StepStatus.CALLING:",
        tests=("tests/executions/test_claims.py",),
    ),
    Mutant(
        name="execution-budget",
        breaks="A step begins though its execution's budget does not cover it.",
        file="apps/executions/services.py",
        text="why = work.execution.over_budget(cost)",
        replacement="why = None",
        tests=("tests/executions/test_claims.py",),
    ),
    Mutant(
        name="execution-reference",
        breaks="A text that a result brings is taken for a reference.",
        file="apps/executions/routing.py",
        text="        return _named(whole, envelopes, payload_of)\n",
        replacement="        return resolve(_named(whole, envelopes, payload_of), envelopes=envelopes, payload_of=payload_of)\n",
        tests=("tests/executions/test_routing.py",),
    ),
    # Plans
    Mutant(
        name="plan-unknown-tool",
        breaks="A plan with a tool that no worker offers is valid.",
        file="apps/plans/validation.py",
        text='yield Problem(case.path(step.step_id, "tool_name"), "unknown_tool", message)',
        replacement="yield from ()",
        tests=("tests/plans/test_validation.py",),
    ),
    Mutant(
        name="plan-refusal",
        breaks="A plan with faults is handed out as ready.",
        file="apps/plans/assembling.py",
        text="if not work.missing and not work.questions:",
        replacement="if not work.questions:",
        tests=("tests/plans/test_assembling.py",),
    ),
    # Memory
    Mutant(
        name="memory-sharing",
        breaks="A subject is read by whom it is not shared with.",
        file="apps/memory/sql.py",
        text='return f"(coalesce(s.share_with, p.share_with) is null or',
        replacement='return f"(true or',
        tests=("tests/memory/test_subjects.py",),
    ),
    Mutant(
        name="memory-superseding",
        breaks="What is learned replaces what the subject said of itself.",
        file="apps/memory/services.py",
        text="if item.stated and item.pk not in agreed:",
        replacement="if item.pk < 0:",
        tests=("tests/memory/test_items.py",),
    ),
    Mutant(
        name="memory-erasing",
        breaks="Forgetting a subject leaves the subject.",
        file="apps/memory/services.py",
        text="    subject.delete()",
        replacement="    pass",
        tests=("tests/memory/test_forgetting.py",),
    ),
    # MCP
    Mutant(
        name="mcp-scope",
        breaks="A client is shown tools that its token may not call.",
        file="apps/mcp/calls.py",
        text="if caller is None or tool.visible_to(caller)]",
        replacement="if True]",
        tests=("tests/mcp/test_endpoint.py",),
    ),
    # Handoff
    Mutant(
        name="handoff-once",
        breaks="Two sessions inherit the same item.",
        file="apps/handoff/services.py",
        text="if inboxes.lock(principal_id=reader.principal_id) is None:",
        replacement="if False:",
        tests=("tests/handoff/test_operations.py",),
    ),
)
