"""Targets, residents and deliverers, made through the product's own services."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as
from apps.receipts import jobs, services, ticks
from apps.receipts.models import Letter, RemoteTarget
from apps.receipts.signals import letters_due
from apps.receipts.states import Door
from tests.factories import T0

TOKEN = "ght_12345678_of-the-other-side"
STORED = {"status": "stored", "uuid": "0190a0a0-0000-7000-8000-000000000001", "receipt_id": "rcpt_there"}


def make_target(
    caller: Caller, url: str, name: str = "north", *, door: Door = Door.GATEHOUSE, token: str = TOKEN, **given: Any
) -> RemoteTarget:
    with acting_as(caller):
        return services.put_target(
            tenant_id=caller.tenant_id, name=name, base_url=url, door=door, token=token, now=T0, **given
        )


def move_away(caller: Caller, principal: Principal | Caller, target: str = "north", name_there: str = "Lee") -> None:
    """From now on the principal lives at the target."""
    principal_id = principal.principal_id if isinstance(principal, Caller) else principal.pk
    with acting_as(caller):
        services.send_elsewhere(
            tenant_id=caller.tenant_id, principal_id=principal_id, target=target, name_there=name_there
        )


@contextmanager
def only_ticks() -> Iterator[None]:
    """Messages are lost: what a tick announces is done at once, and nothing else is."""

    def work(*, tenant_id: int, target_id: int, **_: Any) -> None:
        jobs.deliver(tenant_id, target_id)

    letters_due.disconnect(dispatch_uid="receipts.deliver")
    letters_due.connect(work, dispatch_uid="test", weak=False)
    try:
        yield
    finally:
        letters_due.disconnect(dispatch_uid="test")
        jobs.listen()


def tick() -> None:
    """One tick with nobody but the tick to deliver."""
    with only_ticks():
        ticks.announce_letters()


def pass_time(seconds: float) -> None:
    """Move the database's clock within this transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('gatehouse.now', (gatehouse_now() + make_interval(secs => %s))::text, true)", [seconds]
        )


def letter(**filters: Any) -> Letter:
    return Letter.objects.select_related("target", "receipt").get(**filters)
