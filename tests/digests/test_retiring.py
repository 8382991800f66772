"""Retiring a principal: nothing that it has not acked is lost, and nothing is forwarded twice."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, transaction

from apps.digests import selectors, services
from apps.digests.services.retiring import forwarding_key
from apps.principals import services as principals
from apps.principals.errors import BadSuccessor, BuiltIn
from apps.principals.models import Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.models import MAX_METADATA, Letter, Receipt
from tests.digests.makers import ack_through, post, post_grouped, read, unsound
from tests.digests.test_races import race
from tests.factories import T0, make_caller, make_tenant
from tests.receipts.mailing import make_target, move_away

LATER = T0 + timedelta(hours=1)


@pytest.fixture
def hexy(tenant: Tenant) -> Caller:
    return make_caller(tenant, "Hexy")


def retire(kee: Caller, successor: Caller) -> services.Forwarded:
    with acting_as(kee):
        principals.retire_principal(principal_id=kee.principal_id, successor_id=successor.principal_id, now=LATER)
    return forward(kee)


def forward(kee: Caller) -> services.Forwarded:
    return services.forward(tenant_id=kee.tenant_id, principal_id=kee.principal_id, now=LATER)


def inherited(hexy: Caller) -> list[Receipt]:
    return [seen.receipt for seen in selectors.inbox_receipts(hexy.principal_id, limit=100)][::-1]


def test_what_is_unacked_goes_to_the_successor_as_new_receipts_caused_by_the_first(kee: Caller, hexy: Caller) -> None:
    with acting_as(kee):
        acked, visible = (
            post(kee),
            post(kee, metadata={"of": "use"}, artifact_pointer="s3://b/k", delivery_handle="handle-7"),
        )
        ack_through(kee, read(kee).entries[0].token)
        gathered = post_grouped(kee, "pr:1")

    assert retire(kee, hexy) == services.Forwarded(forwarded=2, remaining=0)

    with acting_as(hexy):
        forwarded = inherited(hexy)
        assert [one.caused_by_ref for one in forwarded] == [visible.receipt_id, gathered.receipt_id]
        assert forwarded[0].metadata == {"of": "use", "forwarded_from": visible.receipt_id}
        assert (forwarded[0].artifact_pointer, forwarded[0].delivery_handle) == ("s3://b/k", "handle-7")
        # One as an entry of its own, the other gathered in a thread like the first.
        assert (selectors.unread_counts(hexy.principal_id).visible, forwarded[1].resource_ref) == (1, "pr:1")
        assert selectors.unread_counts(hexy.principal_id).pending == 1
        assert selectors.unread_counts(kee.principal_id).total == 0
        assert [link.receipt_id for link in receipts.chain(acked.receipt_id)] == [acked.receipt_id]
        assert Principal.objects.get(pk=kee.principal_id).disabled_at == LATER
    with acting_as_system("test"):
        assert unsound() == {}


def test_forwarding_again_forwards_nothing_again(kee: Caller, hexy: Caller) -> None:
    with acting_as(kee):
        post(kee)
    retire(kee, hexy)
    assert forward(kee) == services.Forwarded(forwarded=0, remaining=0)
    with acting_as(hexy):
        assert len(inherited(hexy)) == 1


def test_a_crash_between_posting_and_acking_doubles_nothing(
    kee: Caller, hexy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acting_as(kee):
        owed = post(kee, poster=hexy, requires_action=True)

    def crash(**given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("apps.digests.services.retiring.ack_receipts", crash)
        with pytest.raises(KeyboardInterrupt):
            retire(kee, hexy)
    with acting_as(hexy):
        assert (len(inherited(hexy)), selectors.unread_counts(kee.principal_id).total) == (1, 1)

    assert forward(kee) == services.Forwarded(forwarded=1, remaining=0)
    with acting_as(hexy):
        (one,) = inherited(hexy)
        assert one.caused_by_ref == owed.receipt_id


def test_what_still_arrives_for_a_retired_principal_follows_by_the_tick(kee: Caller, hexy: Caller) -> None:
    retire(kee, hexy)
    with acting_as(hexy):
        late = post(kee, poster=hexy)
    assert services.forward_retired(now=LATER) == 1
    with acting_as(hexy):
        assert [one.caused_by_ref for one in inherited(hexy)] == [late.receipt_id]

    with acting_as(hexy):
        principals.enable_principal(principal_id=kee.principal_id)
        post(kee, poster=hexy)
    assert services.forward_retired(now=LATER) == 0


def test_what_still_arrives_for_who_lived_elsewhere_goes_to_its_successor(kee: Caller, hexy: Caller) -> None:
    make_target(kee, "http://127.0.0.1:1")
    move_away(kee, kee)
    retire(kee, hexy)
    with acting_as(hexy):
        late = post(kee, poster=hexy)
        assert not Letter.objects.exists()
    assert services.forward_retired(now=LATER) == 1
    with acting_as(hexy):
        assert [one.caused_by_ref for one in inherited(hexy)] == [late.receipt_id]

        principals.enable_principal(principal_id=kee.principal_id)
        post(kee, poster=hexy)
        assert Letter.objects.count() == 1


def test_a_debt_moves_to_the_successor_and_is_owed_once(kee: Caller, hexy: Caller, tenant: Tenant) -> None:
    asker = make_caller(tenant, "asker")
    with acting_as(kee):
        post(kee, poster=asker, requires_action=True)
    retire(kee, hexy)
    with acting_as(hexy):
        (debt,) = receipts.obligations(awaited_by=asker.principal_id)
        assert (debt.debtor, debt.creditor) == ("Hexy", "asker")


def test_what_was_acked_and_is_owed_moves_to_the_successor_too(kee: Caller, hexy: Caller, tenant: Tenant) -> None:
    asker = make_caller(tenant, "asker")
    with acting_as(kee):
        owed = post(kee, poster=asker, requires_action=True)
        ack_through(kee, read(kee).entries[-1].token)
    assert retire(kee, hexy) == services.Forwarded(forwarded=1, remaining=0)
    assert forward(kee) == services.Forwarded(forwarded=0, remaining=0)
    with acting_as(hexy):
        assert [one.caused_by_ref for one in inherited(hexy)] == [owed.receipt_id]
        (debt,) = receipts.obligations(awaited_by=asker.principal_id)
        assert (debt.debtor, debt.creditor) == ("Hexy", "asker")
        assert not receipts.obligations(owed_by=kee.principal_id)


def test_the_tick_finds_a_retired_principal_that_only_owes(kee: Caller, hexy: Caller, tenant: Tenant) -> None:
    with acting_as(kee):
        post(kee, poster=make_caller(tenant, "asker"), requires_action=True)
        ack_through(kee, read(kee).entries[-1].token)
        principals.retire_principal(principal_id=kee.principal_id, successor_id=hexy.principal_id, now=LATER)
    assert services.forward_retired(now=LATER) == 1
    assert services.forward_retired(now=LATER) == 0


@pytest.mark.parametrize("event", ["task_queued", "plan_created", "review"])
def test_a_debt_of_whatever_kind_is_handed_on_once_and_its_first_is_closed(
    kee: Caller, hexy: Caller, tenant: Tenant, event: str
) -> None:
    asker = make_caller(tenant, "asker")
    with acting_as(kee):
        post(kee, poster=asker, event_type=event, requires_action=True)
    assert retire(kee, hexy) == services.Forwarded(forwarded=1, remaining=0)
    assert services.forward_retired(now=LATER) == 0
    with acting_as(hexy):
        (debt,) = receipts.obligations(awaited_by=asker.principal_id)
        assert (debt.debtor, debt.creditor) == ("Hexy", "asker")
        assert not receipts.obligations(owed_by=kee.principal_id)


def test_what_its_key_alone_had_gathered_is_gathered_again(kee: Caller, hexy: Caller) -> None:
    with acting_as_system("test"):
        services.set_source(tenant_id=kee.tenant_id, name="github", rate_per_hour=None, groups_by_dedupe_key=True)
    with acting_as(kee):
        for number in range(3):
            post(kee, dedupe_key=f"github:ci:pr:7:{number}")
    assert retire(kee, hexy).forwarded == 3
    with acting_as(hexy):
        assert {one.dedupe_key.rsplit(":", 1)[0] for one in inherited(hexy)} == {"github:ci:pr:7"}
        assert selectors.unread_counts(hexy.principal_id).pending == 3


def test_a_note_where_it_came_from_makes_no_receipt_too_large(kee: Caller, hexy: Caller) -> None:
    metadata = {"text": "x" * (MAX_METADATA - len('{"text":""}'))}
    with acting_as(kee):
        post(kee, metadata=metadata)
    assert retire(kee, hexy).forwarded == 1
    with acting_as(hexy):
        assert [one.metadata for one in inherited(hexy)] == [metadata]


def test_a_long_key_is_forwarded_under_a_shorter_one(kee: Caller, hexy: Caller) -> None:
    with acting_as(kee):
        long = post(kee, dedupe_key=f"github:ci:{'x' * 180}:v1")
        key = forwarding_key(receipts.find(long.receipt_id))
    assert retire(kee, hexy).forwarded == 1
    with acting_as(hexy):
        assert [one.dedupe_key for one in inherited(hexy)] == [key]
        assert len(key) < len(long.dedupe_key)


def test_who_knows_a_receipt_can_not_use_the_key_of_its_forwarding_up(kee: Caller, hexy: Caller) -> None:
    with acting_as(kee):
        held = post(kee, poster=hexy)
        post(hexy, dedupe_key=held.dedupe_key.replace(":v1", f":forward-{held.uuid}"))
        post(hexy, dedupe_key=f"forward-{held.uuid}")
    assert retire(kee, hexy) == services.Forwarded(forwarded=1, remaining=0)
    with acting_as(hexy):
        (forwarded,) = (one for one in inherited(hexy) if one.caused_by_ref == held.receipt_id)
        assert str(held.uuid) not in forwarded.dedupe_key


def test_the_tick_goes_round_a_batch_of_each_at_a_time_until_its_patience_ends(
    kee: Caller, hexy: Caller, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.digests.services.retiring.BATCH", 2)
    lee = make_caller(tenant, "Lee")
    for one in (kee, lee):
        with acting_as(one):
            principals.retire_principal(principal_id=one.principal_id, successor_id=hexy.principal_id, now=LATER)
            for _ in range(5):
                post(one)
    assert services.forward_retired(now=LATER, patience=timedelta(0)) == 2
    assert services.forward_retired(now=LATER, patience=timedelta(hours=1)) == 8
    assert services.forward_retired(now=LATER) == 0
    with acting_as(hexy):
        assert len(inherited(hexy)) == 10


def test_more_than_one_batch_is_forwarded(kee: Caller, hexy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.digests.services.retiring.BATCH", 2)
    with acting_as(kee):
        for _ in range(5):
            post_grouped(kee, "pr:1", flush_class="immediate")
    assert retire(kee, hexy) == services.Forwarded(forwarded=5, remaining=0)
    with acting_as_system("test"):
        assert unsound() == {}


@pytest.mark.parametrize("successor", ["itself", "disabled"])
def test_a_successor_is_another_one_that_can_act(kee: Caller, tenant: Tenant, successor: str) -> None:
    heir = kee if successor == "itself" else make_caller(tenant, "gone")
    with acting_as(kee):
        if successor == "disabled":
            principals.disable_principal(principal_id=heir.principal_id, now=T0)
        with pytest.raises(BadSuccessor):
            principals.retire_principal(principal_id=kee.principal_id, successor_id=heir.principal_id, now=LATER)
        assert Principal.objects.get(pk=kee.principal_id).disabled_at is None
        assert not Principal.objects.filter(successor__isnull=False).exists()


def test_a_gates_own_principal_does_not_retire(kee: Caller) -> None:
    with acting_as(kee):
        gate = Principal.objects.get(name=principals.ASYNCGATE)
        with pytest.raises(BuiltIn):
            principals.retire_principal(principal_id=gate.pk, successor_id=kee.principal_id, now=LATER)
        assert Principal.objects.get(pk=gate.pk).disabled_at is None


def test_an_enabled_principal_has_no_successor_any_more(kee: Caller, hexy: Caller) -> None:
    retire(kee, hexy)
    with acting_as(hexy):
        principals.enable_principal(principal_id=kee.principal_id)
        post(kee)
        principals.disable_principal(principal_id=kee.principal_id, now=LATER)
    assert services.forward_retired(now=LATER) == 0
    with acting_as(kee):
        assert selectors.unread_counts(kee.principal_id).total == 1


def test_two_that_retire_to_each_other_in_turn_forward_nothing_in_a_circle(kee: Caller, hexy: Caller) -> None:
    retire(kee, hexy)
    with acting_as(hexy):
        principals.enable_principal(principal_id=kee.principal_id)
        post(hexy)
    retire(hexy, kee)
    with acting_as(kee):
        principals.disable_principal(principal_id=kee.principal_id, now=LATER)
    assert services.forward_retired(now=LATER) == 0
    with acting_as(kee):
        assert selectors.unread_counts(kee.principal_id).total == 1


def test_what_a_stranger_posted_under_the_key_of_a_forwarding_is_not_taken_for_it(
    kee: Caller, hexy: Caller, tenant: Tenant
) -> None:
    with acting_as(kee):
        first, second = post(kee), post(kee)
        post(make_caller(tenant, "Zed"), dedupe_key=forwarding_key(receipts.find(first.receipt_id)))
    assert retire(kee, hexy) == services.Forwarded(forwarded=1, remaining=1)
    with acting_as(hexy):
        assert [one.caused_by_ref for one in inherited(hexy)] == [second.receipt_id]


def test_the_trouble_of_one_inbox_keeps_no_other_from_its_heir(
    kee: Caller, hexy: Caller, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    lee = make_caller(tenant, "Lee")
    for one in (kee, lee):
        with acting_as(one):
            principals.retire_principal(principal_id=one.principal_id, successor_id=hexy.principal_id, now=LATER)
            post(one)
    forwarded = services.forward

    def troubled(**given: Any) -> services.Forwarded:
        if given["principal_id"] == kee.principal_id:
            raise OperationalError
        return forwarded(**given)

    monkeypatch.setattr("apps.digests.services.retiring.forward", troubled)
    assert services.forward_retired(now=LATER) == 1


@pytest.mark.parametrize("broken", [{"successor_id": "itself", "disabled_at": T0}, {"successor_id": "hexy"}])
def test_the_database_refuses_a_successor_of_oneself_or_of_who_can_act(
    kee: Caller, hexy: Caller, broken: dict[str, Any]
) -> None:
    heir = {"itself": kee, "hexy": hexy}[broken["successor_id"]].principal_id
    with (
        acting_as(kee),
        pytest.raises(IntegrityError, match="principals_principal_retired_is_disabled"),
        transaction.atomic(),
    ):
        Principal.objects.filter(pk=kee.principal_id).update(**{**broken, "successor_id": heir})


@pytest.mark.django_db(transaction=True)
def test_two_that_retire_to_each_other_leave_one_that_acts() -> None:
    tenant = make_tenant("acme")
    kee, hexy = make_caller(tenant, "Kee"), make_caller(tenant, "Hexy")

    outcomes = race(lambda: retire(kee, hexy), lambda: retire(hexy, kee))

    assert sorted(type(one).__name__ for one in outcomes) == ["BadSuccessor", "Forwarded"]
    with acting_as_system("test"):
        assert Principal.objects.filter(pk__in=[kee.principal_id, hexy.principal_id], disabled_at=None).count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_that_forward_the_same_inbox_at_once_forward_each_receipt_once() -> None:
    tenant = make_tenant("acme")
    kee, hexy = make_caller(tenant, "Kee"), make_caller(tenant, "Hexy")
    with acting_as(kee):
        for _ in range(20):
            post(kee)
        principals.retire_principal(principal_id=kee.principal_id, successor_id=hexy.principal_id, now=LATER)

    outcomes = race(*[lambda: forward(kee)] * 4)

    assert {type(one) for one in outcomes} == {services.Forwarded}
    with acting_as(hexy):
        assert len(inherited(hexy)) == 20
        assert selectors.unread_counts(kee.principal_id).total == 0
