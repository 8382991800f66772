"""Facts, the chain between them, and what is owed because of them."""

from dataclasses import fields, replace
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.errors import Conflict, Invalid
from apps.core.sql import execute
from apps.digests.services import Posted, post_many
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from apps.receipts import selectors
from apps.receipts.errors import DuplicateReceipt, UnknownReceipt
from apps.receipts.models import Obligation, Receipt, ReceiptKey
from apps.receipts.services import Group, ObligationDraft, Poster, ReceiptDraft
from tests.digests.makers import make_draft, post
from tests.factories import T0, make_caller


def chain_of(reference: str) -> list[str]:
    return [link.receipt_id for link in selectors.chain(reference)]


def test_a_chain_is_walked_both_ways_from_any_of_its_receipts(as_kee: Caller) -> None:
    root = post(as_kee, event_type="task_received", surface="ledger")
    plan = post(as_kee, event_type="plan_created", caused_by=root.receipt_id, surface="ledger")
    queued = [post(as_kee, event_type="task_queued", caused_by=str(plan.uuid), surface="ledger") for _ in range(2)]
    done = post(as_kee, event_type="task_complete", pairs_with=queued[0].receipt_id, caused_by=queued[0].receipt_id)
    post(as_kee)
    whole = [one.receipt_id for one in (root, plan, *queued, done)]
    for one in whole:
        assert chain_of(one) == whole
    link = selectors.chain(str(done.uuid))[-1]
    assert (link.pairs_with, link.caused_by_receipt_id) == (queued[0].receipt_id, queued[0].receipt_id)


def test_a_cause_that_arrives_later_is_linked_then(as_kee: Caller) -> None:
    effect = post(as_kee, caused_by="R.1")
    assert Receipt.objects.get(pk=effect.id).caused_by is None
    cause = post(as_kee, receipt_id="R.1")
    assert Receipt.objects.get(pk=effect.id).caused_by_id == cause.id
    assert chain_of("R.1") == [effect.receipt_id, "R.1"]


def test_an_obligation_closes_with_the_receipt_that_pairs_with_it(as_kee: Caller, hexy: Caller) -> None:
    owed = ObligationDraft(debtor_id=hexy.principal_id, creditor_id=as_kee.principal_id)
    root = post(as_kee, surface="ledger", obligation=owed)
    asked = post(hexy, poster=as_kee, requires_action=True)
    listed = selectors.obligations(owed_by=hexy.principal_id).obligations
    assert [one.receipt_id for one in listed] == [root.receipt_id, asked.receipt_id]
    assert selectors.obligations(awaited_by=as_kee.principal_id).obligations == listed

    closer = post(as_kee, pairs_with=root.receipt_id)
    post(as_kee, pairs_with=root.receipt_id)

    assert [one.receipt_id for one in selectors.obligations(owed_by=hexy.principal_id).obligations] == [
        asked.receipt_id
    ]
    assert Obligation.objects.get(pk=root.id).closed_by_id == closer.id


def test_a_closer_that_comes_before_its_root_waits_for_it(as_kee: Caller) -> None:
    closer = post(as_kee, pairs_with="R.9")
    assert Receipt.objects.get(pk=closer.id).pairs_with is None
    root = post(as_kee, receipt_id="R.9", requires_action=True)
    obligation = Obligation.objects.get(pk=root.id)
    assert (obligation.closed_by_id, obligation.closed_at) == (closer.id, obligation.opened_at)
    assert chain_of("R.9") == [closer.receipt_id, "R.9"]


@pytest.mark.parametrize("early", [False, True])
def test_the_first_of_several_closers_closes(as_kee: Caller, early: bool) -> None:
    closers = [make_draft(as_kee, dedupe_key=key, pairs_with="R.1") for key in ("first", "second", "third")]
    root = make_draft(as_kee, receipt_id="R.1", requires_action=True)
    drafts = [closers, [root]] if early else [[root], closers]
    for batch in drafts:
        post_many(poster=Poster.of(as_kee), drafts=batch, now=T0)
    first = Receipt.objects.filter(pairs_with_ref="R.1").order_by("pk").first()
    assert first is not None
    assert Obligation.objects.get().closed_by_id == first.pk


def test_a_cycle_is_refused_and_changes_nothing(as_kee: Caller) -> None:
    post(as_kee, receipt_id="a", caused_by="b")
    post(as_kee, receipt_id="b", pairs_with="c")
    before = list(Receipt.objects.order_by("pk").values())
    for own, cause, told in (("c", "a", "its own cause"), ("d", "d", "refer to itself")):
        with pytest.raises(Invalid, match=told):
            post(as_kee, receipt_id=own, caused_by=cause)
    assert list(Receipt.objects.order_by("pk").values()) == before


def test_everything_that_waits_for_a_receipt_is_linked_with_it(as_kee: Caller) -> None:
    waiting = [post(as_kee, receipt_id=f"w.{n}", caused_by="R.1", pairs_with="R.1") for n in range(7)]
    post(as_kee, caused_by="w.6")
    root = post(as_kee, receipt_id="R.1", caused_by="R.0")
    assert Receipt.objects.filter(caused_by=root.id, pairs_with=root.id).count() == 7
    whole = chain_of("R.1")
    assert len(whole) == 9
    assert [chain_of(one.receipt_id) for one in waiting] == [whole] * 7
    for cause in ("w.0", "w.6"):
        with pytest.raises(Invalid, match="its own cause"):
            post(as_kee, receipt_id="R.0", caused_by=cause)


def _hang(poster: Caller, name: str, *, number: int, under: str) -> str:
    """A chain of receipts; answers the last of it."""
    for n in range(number):
        under = post(poster, receipt_id=f"{name}.{n}", caused_by=under).receipt_id
    return under


@pytest.fixture
def three_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.receipts.services._WALKED", 3)


@pytest.mark.usefixtures("three_walked")
def test_a_chain_may_be_long_above_and_no_cycle_is_missed(as_kee: Caller) -> None:
    top = _hang(as_kee, "above", number=6, under="nowhere")
    bottom = _hang(as_kee, "below", number=3, under="R.1")
    for cause in ("below.0", bottom):
        with pytest.raises(Invalid, match="its own cause"):
            post(as_kee, receipt_id="R.1", caused_by=cause)
    stored = post(as_kee, receipt_id="R.1", caused_by=top, pairs_with=top)
    assert Receipt.objects.get(receipt_id="below.0").caused_by_id == stored.id


@pytest.mark.usefixtures("three_walked")
def test_what_a_long_chain_hangs_from_refers_to_nothing_that_is_known(as_kee: Caller) -> None:
    top = _hang(as_kee, "above", number=4, under="nowhere")
    _hang(as_kee, "below", number=4, under="R.1")
    before = list(Receipt.objects.order_by("pk").values())
    with pytest.raises(Invalid, match="Over 3 receipts follow"):
        post(as_kee, receipt_id="R.1", caused_by=top)
    assert list(Receipt.objects.order_by("pk").values()) == before
    drafts = [make_draft(as_kee, receipt_id="R.1", caused_by=top), make_draft(as_kee, caused_by=top)]
    refused, stored = post_many(poster=Poster.of(as_kee), drafts=drafts, now=T0)
    assert isinstance(refused, Invalid)
    assert refused.code == "chain_too_long"
    assert isinstance(stored, Posted)
    assert post(as_kee, receipt_id="R.1").receipt_id == "R.1"


def test_repetitions_and_conflicts_are_told_apart(as_kee: Caller) -> None:
    first = post(as_kee, dedupe_key="k", title="t", summary="s", receipt_id="R.1")
    keys = ReceiptKey.objects.count()
    with pytest.raises(DuplicateReceipt) as duplicate:
        post(as_kee, dedupe_key="k", title="t", summary="s", receipt_id="R.2")
    assert duplicate.value.extra == {"existing_receipt_id": "R.1", "existing_uuid": str(first.uuid)}
    with pytest.raises(Conflict, match="other content"):
        post(as_kee, dedupe_key="k", title="t", summary="other")
    with pytest.raises(Conflict, match="another dedupe key"):
        post(as_kee, dedupe_key="k2", receipt_id="R.1")
    assert (Receipt.objects.count(), ReceiptKey.objects.count()) == (1, keys)


def test_one_source_does_not_block_the_keys_of_another(as_kee: Caller) -> None:
    post(as_kee, source="github", dedupe_key="k")
    post(as_kee, source="gitlab", dedupe_key="k")
    assert Receipt.objects.count() == 2


def test_a_receipt_of_nobody_concerned_is_unknown(tenant: Tenant, as_kee: Caller) -> None:
    posted = post(as_kee)
    with pytest.raises(UnknownReceipt):
        selectors.find_for(posted.receipt_id, principal_id=make_caller(tenant, "Hexy").principal_id)
    with pytest.raises(UnknownReceipt):
        selectors.find("nonesuch")


@pytest.mark.parametrize("column", ["summary = 'x'", "recipient_id = recipient_id + 1", "created_at = now()"])
def test_i4_the_database_refuses_to_change_a_fact(as_kee: Caller, column: str) -> None:
    post(as_kee)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        execute(f"update receipts_receipt set {column}")


def test_only_the_system_may_redact_and_only_content(as_kee: Caller) -> None:
    post(as_kee)
    redact = "update receipts_receipt set summary = 'redacted', redacted_at = gatehouse_now()"
    with connection.cursor() as cursor:
        for role, switch in (("gatehouse_app", "on"), ("gatehouse_operator", "on"), ("gatehouse_system", "off")):
            cursor.execute(
                "select set_config('role', %s, true), set_config('gatehouse.redacting', %s, true)", [role, switch]
            )
            cursor.execute("select set_config('gatehouse.tenants', %s, true)", [str(as_kee.tenant_id)])
            with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
                cursor.execute(redact)
        cursor.execute("select set_config('gatehouse.redacting', 'on', true)")
        cursor.execute(redact)
        with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
            cursor.execute("update receipts_receipt set source_system = 'x'")


PARTIES = {"debtor": "Hexy", "creditor": "Lee", "stranger": "Mal"}


def _owed(tenant: Tenant, root_event: str) -> tuple[Caller, Caller, Caller]:
    """The debtor, the creditor, and somebody whom it does not concern."""
    debtor, creditor, stranger = (make_caller(tenant, name) for name in PARTIES.values())
    owed = ObligationDraft(debtor_id=debtor.principal_id, creditor_id=creditor.principal_id)
    gate = debtor if root_event == "task_queued" else creditor
    post(debtor, poster=gate, receipt_id="R.root", event_type=root_event, surface="ledger", obligation=owed)
    return debtor, creditor, stranger


@pytest.mark.parametrize(
    "case",
    [
        ("review", "done", "debtor", True),
        ("review", "done", "creditor", True),
        ("review", "done", "stranger", False),
        ("task_queued", "task_complete", "debtor", True),
        ("task_queued", "task_failed", "debtor", True),
        ("task_queued", "task_canceled", "debtor", True),
        ("task_queued", "task_queued", "debtor", True),
        ("task_queued", "task_queued", "creditor", False),
        ("task_queued", "task_queued", "stranger", False),
        ("task_queued", "done", "debtor", False),
        ("task_queued", "task_complete", "creditor", False),
        ("task_queued", "task_complete", "stranger", False),
        ("plan_created", "plan_complete", "debtor", True),
        ("plan_created", "plan_abandoned", "creditor", True),
        ("plan_created", "done", "debtor", False),
        ("plan_created", "plan_complete", "stranger", False),
    ],
)
@pytest.mark.parametrize("early", [False, True], ids=["after the root", "before the root"])
def test_only_whom_it_concerns_closes_an_obligation(
    tenant: Tenant, as_kee: Caller, case: tuple[str, str, str, bool], early: bool
) -> None:
    root_event, closer_event, who, closes = case
    parties = {name: make_caller(tenant, own) for name, own in PARTIES.items()}
    if early:
        post(parties["stranger"], event_type=closer_event, pairs_with="R.root")
        closer = post(parties[who], event_type=closer_event, pairs_with="R.root")
        _owed(tenant, root_event)
    else:
        _owed(tenant, root_event)
        post(parties["stranger"], event_type=closer_event, pairs_with="R.root")
        closer = post(parties[who], event_type=closer_event, pairs_with="R.root")
    root = Receipt.objects.get(receipt_id="R.root")
    assert Receipt.objects.get(pk=closer.id).pairs_with_id == root.pk
    assert Obligation.objects.get(pk=root.pk).closed_by_id == (closer.id if closes else None)


def test_a_uuid_names_the_receipt_that_has_it_whatever_another_is_called(as_kee: Caller) -> None:
    root = post(as_kee)
    post(as_kee, receipt_id=str(root.uuid))
    assert selectors.find(str(root.uuid)).pk == root.id
    answer = post(as_kee, pairs_with=str(root.uuid))
    assert Receipt.objects.get(pk=answer.id).pairs_with_id == root.id


OTHERWISE: dict[str, object] = {
    "event_type": "other",
    "summary": "other",
    "title": "other",
    "metadata": {"other": 1},
    "artifact_pointer": "other",
    "artifact_location": "other",
    "requires_action": True,
    "suggested_next_step": "other",
    "caused_by": "other",
    "pairs_with": "other",
    "group": Group(resource_ref="other"),
    "delivery_handle": "other",
    "surface": "ledger",
}
NO_CONTENT = {"source_system", "dedupe_key", "receipt_id", "obligation"}


def test_every_field_of_a_draft_is_content_or_known_not_to_be() -> None:
    assert {one.name for one in fields(ReceiptDraft)} == OTHERWISE.keys() | {"recipient_id"} | NO_CONTENT


@pytest.mark.parametrize("field", [*OTHERWISE, "recipient_id"])
def test_the_same_key_with_one_field_changed_is_a_conflict(tenant: Tenant, as_kee: Caller, field: str) -> None:
    other = make_caller(tenant, "Hexy").principal_id
    draft = make_draft(as_kee)
    poster = Poster.of(as_kee)
    assert isinstance(post_many(poster=poster, drafts=[draft], now=T0)[0], Posted)
    values: dict[str, Any] = OTHERWISE | {"recipient_id": other}
    changed = replace(draft, **{field: values[field]})
    for again, code in ((draft, "duplicate_receipt"), (changed, "dedupe_conflict")):
        (verdict,) = post_many(poster=poster, drafts=[again], now=T0)
        assert getattr(verdict, "code", None) == code
    assert Receipt.objects.count() == 1
