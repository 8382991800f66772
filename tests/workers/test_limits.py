"""How many calls a worker may be sent: its own word times its tier's share, held by one row."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import selectors
from apps.workers.models import WorkerRateLimited
from apps.workers.services import registry
from apps.workers.trust import CALLS_PER_HOUR, Tier, calls_per_hour, share_of_an_hour
from tests.factories import make_caller
from tests.workers.factories import NOTHING, enroll, make_key, make_manifest, move_clock, register, signed


def limited(caller: Caller, per_hour: int | None, tier: Tier = Tier.TRUSTED, worker_id: str = "w") -> None:
    key = make_key(f"key-of-{worker_id}")
    enroll(caller, key, tier)
    constraints = {} if per_hour is None else {"rate_limit_per_hour": per_hour}
    manifest = make_manifest(worker_id, constraints=constraints, side_effects=NOTHING, trust={"tier": tier.value})
    register(caller, signed(manifest, key, validity=timedelta(days=1)))


def taken(worker_id: str = "w", most: int = 50) -> int:
    """How many calls there is room for now."""
    for number in range(most):
        try:
            registry.take_call(worker_id=worker_id)
        except WorkerRateLimited:
            return number
    return most


@pytest.mark.parametrize(
    ("tier", "stated", "an_hour"),
    [
        (Tier.TRUSTED, 100, 100),
        (Tier.VERIFIED, 100, 50),
        (Tier.SANDBOX, 100, 10),
        (Tier.UNTRUSTED, 100, 1),
        (Tier.UNTRUSTED, None, CALLS_PER_HOUR / 100),
        (Tier.TRUSTED, 0, 0),
    ],
)
def test_tier_scales_the_limit(tier: Tier, stated: int | None, an_hour: float) -> None:
    assert calls_per_hour(stated, tier) == pytest.approx(an_hour)


@pytest.mark.parametrize("per_hour", [1, 7, 11, 100, 3_600, 7_000, 9_999])
def test_hour_fits_all_its_calls(per_hour: int) -> None:
    assert timedelta(0) <= timedelta(hours=1) - share_of_an_hour(per_hour) * per_hour < timedelta(milliseconds=10)


@pytest.mark.parametrize(
    ("tier", "room"), [(Tier.TRUSTED, 20), (Tier.VERIFIED, 10), (Tier.SANDBOX, 2), (Tier.UNTRUSTED, 1)]
)
def test_limit_allows_a_burst_and_then_a_steady_rate(as_kee: Caller, tier: Tier, room: int) -> None:
    move_clock(timedelta(0))
    limited(as_kee, 20, tier)

    assert taken() == room
    with pytest.raises(WorkerRateLimited) as refused:
        registry.take_call(worker_id="w")
    assert refused.value.retry_after == (3_600 // room if room > 1 else 5 * 3_600)
    move_clock(timedelta(seconds=refused.value.retry_after - 1))
    assert taken() == 0
    move_clock(timedelta(seconds=1))
    assert taken() == 1
    move_clock(timedelta(hours=6))
    assert taken() == room


def test_lost_tier_limits_the_next_call(as_kee: Caller) -> None:
    move_clock(timedelta(0))
    limited(as_kee, 100)
    registry.take_call(worker_id="w")

    registry.revoke_key(tenant_id=as_kee.tenant_id, key_id="key-of-w", why="stolen")

    assert taken() == 0


def test_limit_of_zero_bars_the_worker(as_kee: Caller) -> None:
    limited(as_kee, 0)

    (offer,) = selectors.catalogue().offers
    assert offer.barred == "its limit is no calls at all"
    assert taken() == 0


@pytest.mark.django_db(transaction=True)
def test_concurrent_callers_share_the_limit(tenant: Tenant) -> None:
    kee = make_caller(tenant, "kee", Kind.WORKER)
    with acting_as(kee):
        limited(kee, 10)
    barrier = threading.Barrier(4)
    granted: list[int] = []

    def run() -> None:
        barrier.wait()
        for _ in range(5):
            with acting_as(kee):
                granted.append(taken(most=1))
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert (len(granted), sum(granted)) == (20, 10)
