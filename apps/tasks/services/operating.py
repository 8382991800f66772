"""What operators do to tasks and queues, whoever asked for them."""

from django.db import transaction

from apps.core.errors import DomainError
from apps.core.ids import format_ref
from apps.core.sql import hot_cursor
from apps.principals.models import Principal
from apps.principals.tenancy import on_behalf_of
from apps.tasks import sql
from apps.tasks.errors import NotLeased
from apps.tasks.models import Task
from apps.tasks.services import recording
from apps.tasks.services.budgets import spent_end
from apps.tasks.services.ending import cancel
from apps.tasks.services.recording import Back, End
from apps.tasks.services.replaying import REPLAY_BATCH, replay_many
from apps.tasks.shapes import QueuedTask
from apps.tasks.states import BUDGET_SPENT, CANCEL_REQUESTED, MOST_RUNS, Outcome, Reason, Status


@transaction.atomic
def cancel_for_requester(*, task_id: int) -> Status:
    """Cancel a task as its requester would.

    :raises AlreadyFinished: if it has succeeded or failed.
    """
    requester_id = Task.objects.values_list("requester_id", flat=True).get(pk=task_id)
    requester = Principal.objects.select_related("tenant").get(pk=requester_id)
    return cancel(caller=on_behalf_of(requester), task_id=task_id)


@transaction.atomic
def revoke_lease(*, task_id: int) -> Status:
    """Take a task from its holder: it stands where it stood, and no attempt is counted; one to be canceled is, and
    one whose budget is spent, or that has been given out as often as any may be, ends.

    Whatever its holder still says of it is refused.

    :raises NotLeased: if nobody holds it.
    """
    hold = recording.lock([task_id]).get(task_id)
    if hold is None or hold.holder_id is None:
        raise NotLeased(f"Nobody holds {format_ref('task', task_id)}.")
    end = None
    if hold.flags & CANCEL_REQUESTED:
        end = End(task_id=task_id, status=Status.CANCELED, outcome=Outcome.REVOKED, reason=Reason.CANCELED)
    elif hold.flags & BUDGET_SPENT:
        end = spent_end(task_id=task_id, flags=hold.flags, outcome=Outcome.REVOKED)
    elif hold.fence >= MOST_RUNS:
        end = End(task_id=task_id, status=Status.FAILED, outcome=Outcome.REVOKED, reason=Reason.ATTEMPTS_EXHAUSTED)
    if end is not None:
        recording.settle([end])
        return end.status
    recording.settle([], [Back(task_id=task_id, fence=hold.fence, outcome=Outcome.REVOKED)])
    return Status.QUEUED


@transaction.atomic
def replay_queue(*, queue_id: int) -> tuple[int, list[DomainError]]:
    """Replay the newest dead letters of a queue that have not been replayed: how many, and why others were not."""
    with hot_cursor() as cursor:
        cursor.execute(sql.UNREPLAYED, {"queue": queue_id, "limit": REPLAY_BATCH})
        answers = replay_many(task_ids=[task_id for (task_id,) in cursor.fetchall()])
    fresh = [answer for answer in answers if isinstance(answer, QueuedTask) and not answer.is_duplicate]
    return len(fresh), [answer for answer in answers if isinstance(answer, DomainError)]
