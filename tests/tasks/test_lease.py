"""Leases: who gets what, for how long, and how they are lost."""

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from tests.factories import make_caller
from tests.tasks.making import SCHEMA, complete, lease, lease_one, make_type, queue


def test_a_task_is_queued_leased_and_completed(tenant: Tenant, kee: Caller) -> None:
    worker = make_caller(tenant, "W", Kind.WORKER)
    make_type(kee, schema=SCHEMA)
    queued = queue(kee, params={"path": "/x"})

    grant = lease_one(worker)
    finished = complete(worker, grant, {"files": 3})

    assert (grant.task_type, grant.params, grant.fence) == ("index", {"path": "/x"}, 1)
    assert (finished.task_id, finished.status) == (queued.task_id, "succeeded")
    assert lease(worker) == []
