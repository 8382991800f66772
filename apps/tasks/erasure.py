"""What tasks lose when a subject is forgotten: their params, progress, results, files and receipts."""

from functools import partial
from typing import Final

from django.core.files.storage import storages
from django.db import transaction

from apps.core.erasure import FORGOTTEN, Rows, belong, register
from apps.core.sql import fetch
from apps.tasks import selectors
from apps.tasks.states import FENCING_TOKEN_BITS

_MARK: Final = f"'{FORGOTTEN}'::jsonb"
FORGOTTEN_TASKS: Final = f"select id from tasks_task where tenant_id = %(tenant)s and params = {_MARK}"
_results: Final = [
    f"""select result_pointer, content::text, content is not distinct from {_MARK} from task_history
    where tenant_id = %(tenant)s"""
]


def give_artifacts(results: str) -> None:
    """Say which rows of another app can point to artifacts, as SQL: a pointer, the row's text, whether it is forgotten."""
    _results.append(results)


def forget_artifacts(tenant_id: int, _: object = None) -> None:
    """Remove the artifacts that forgotten results point to, unless a result that is not forgotten names them too.

    Their files go after the commit. If the process ends between the two, a file stays that no row names.
    """
    results = f"({' union all '.join(_results)}) as result(pointer, said, forgotten)"
    pointer = "'artifact:sha256-' || digest"
    gone = fetch(
        f"delete from tasks_artifact where tenant_id = %(tenant)s"
        f" and {pointer} in (select pointer from {results} where forgotten)"
        # As a list of all, made once, not for each artifact.
        f" and {pointer} not in (select named[1] from {results},"
        " regexp_matches(concat(pointer, ' ', said), 'artifact:sha256-[0-9a-f]{64}', 'g') as named"
        " where not forgotten) returning digest",
        {"tenant": tenant_id},
    )
    for (digest,) in gone:
        place = selectors.place_of(tenant_id, digest)
        transaction.on_commit(partial(storages["artifacts"].delete, place), robust=True)


register(
    Rows(
        table="tasks_task",
        redacted={"params": _MARK, '"group"': "null", "caused_by": "null"},
        also=f"id in (select task_id from task_history where tenant_id = %(tenant)s and content = {_MARK})",
    ),
    Rows(
        table="tasks_run",
        redacted={"message": "''", "host": "''", "checkpoint": "null", "error": "null", "answer": "null"},
        also=f"id >> {FENCING_TOKEN_BITS} in ({FORGOTTEN_TASKS})",
    ),
    Rows(
        table="task_history",
        # The pointer stays where it names an artifact: its file is found by it.
        redacted={
            "error": "null",
            "content": _MARK,
            "summary": "''",
            "result_pointer": "case when result_pointer like 'artifact:sha256-%%' then result_pointer end",
        },
        also=f"task_id in ({FORGOTTEN_TASKS})",
        then=forget_artifacts,
    ),
    Rows(table="tasks_schedule", redacted={"params": _MARK, "last_refusal": "''", "next_at": "null"}),
)
belong(
    "receipts_receipt",
    f"receipt_id in (select receipt_id from task_history where tenant_id = %(tenant)s and content = {_MARK}"
    f" union all select receipt_id from tasks_task where tenant_id = %(tenant)s and params = {_MARK})",
)
