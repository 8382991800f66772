"""The inbox at the console: as its principal sees it, and with a replay of its past."""

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.sql import database_now
from apps.digests.models import Inbox, ReceiptState, Thread
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.digests.makers import ack_through, post, post_grouped, read
from tests.factories import make_caller


def page_of(console: Client, kind: str, pk: int, **query: str | int) -> str:
    answer = console.get(reverse(f"admin:digests_{kind}_change", args=[pk]), query)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


@pytest.fixture
def kee(tenant: Tenant) -> Caller:
    kee = make_caller(tenant)
    with acting_as(kee):
        now = database_now()
        post(kee, title="Nightly <b>run</b>", now=now)
        for _ in range(3):
            post_grouped(kee, now=now)
        post_grouped(kee, flush_class="immediate", now=now)
        post_grouped(kee, flush_class="immediate", now=now)
        post_grouped(kee, "pr:2", now=now)
    return kee


def test_the_inbox_page_shows_what_its_principal_sees(kee: Caller, console: Client) -> None:
    with acting_as(kee):
        seen = read(kee)
        inbox = Inbox.objects.get()
    page = page_of(console, "inbox", inbox.pk)
    assert "6 unread in visible entries, 1 in buffers; as of 3." in page
    assert [entry.ref in page for entry in seen.entries] == [True, True]
    assert "Nightly &lt;b&gt;run&lt;/b&gt;" in page
    assert "digest_snapshot, 5 receipts, immediate, github:pr:1:ci" in page
    with acting_as(kee):
        assert not ReceiptState.objects.exclude(delivered_at=None).exists()


def test_the_inbox_page_replays_the_past(kee: Caller, console: Client) -> None:
    with acting_as(kee):
        pk = Inbox.objects.get().pk
    assert "wakes saved" not in page_of(console, "inbox", pk)
    page = page_of(console, "inbox", pk, hours=1, window=60, max_items=1)
    assert "7 receipts since" in page
    assert "4 entries with the policies of this inbox, <strong>7</strong> with these; -3 wakes saved." in page
    refused = page_of(console, "inbox", pk, hours=0, window="x")
    assert "wakes saved" not in refused
    assert "greater than or equal to 1" in refused


def test_the_thread_page_shows_its_snapshots_with_their_reasons(kee: Caller, console: Client) -> None:
    with acting_as(kee):
        ack_through(kee, read(kee).entries[-1].token)
    with acting_as_system("test"):
        thread = Thread.objects.get(resource_ref="pr:1")
    page = page_of(console, "thread", thread.pk)
    assert "by immediate, 5 receipts, acked: 5 ci on pr:1" in page
    assert "by immediate, 4 receipts, superseded by 3: 4 ci on pr:1" in page
