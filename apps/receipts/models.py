"""Facts, their idempotency keys, who owes what because of them, and what goes to other deployments."""

from typing import Final

from django.db import models
from django.db.models import F, Q

from apps.core.erasure import Rows, register
from apps.principals.models import Principal, TenantModel

MAX_METADATA: Final = 64 * 1024
"""Bytes of a receipt's metadata, as JSON."""
LONGEST_KEY: Final = 200
"""Characters of a dedupe key."""

REDACTED: Final = {
    "title": "null",
    "summary": "''",
    "metadata": "'{}'",
    "dedupe_key": "''",
    "artifact_pointer": "null",
    "artifact_location": "null",
    "suggested_next_step": "null",
    "resource_ref": "null",
    "summary_hint": "null",
    "delivery_handle": "null",
    "redacted_at": "coalesce(redacted_at, gatehouse_now())",
}
"""What is left of a receipt's columns when its words are forgotten, as SQL."""


class Surface(models.TextChoices):
    """Where a receipt shows: in its recipient's inbox, only in the chain and the obligations, or, of a recipient that
    lives at another deployment, in an inbox there."""

    INBOX = "inbox"
    LEDGER = "ledger"
    REMOTE = "remote"


class FlushClass(models.TextChoices):
    NORMAL = "normal"
    IMMEDIATE = "immediate"


class Receipt(TenantModel):
    """One fact for one recipient: something happened.

    A trigger refuses updates, with three exceptions. The two links are set when their other end arrives. Redaction
    empties the text. Retention leaves a tombstone of a linked receipt (`pruned_at`): who, what kind, and when.
    `caused_by_ref` and `pairs_with_ref` hold what the poster wrote, a receipt id or a uuid. The links are set as soon
    as that receipt is known. The chain has no cycles.
    """

    uuid = models.UUIDField(editable=False)
    receipt_id = models.CharField(max_length=100)
    recipient = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="received", db_index=False, db_constraint=False
    )
    poster = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="posted", db_index=False, db_constraint=False
    )
    source_system = models.CharField(max_length=50)
    event_type = models.CharField(max_length=50)
    dedupe_key = models.CharField(max_length=LONGEST_KEY)
    title = models.CharField(max_length=200, null=True)
    summary = models.TextField()
    metadata = models.JSONField(default=dict)
    artifact_pointer = models.TextField(null=True)
    artifact_location = models.TextField(null=True)
    requires_action = models.BooleanField(default=False)
    suggested_next_step = models.TextField(null=True)
    caused_by_ref = models.CharField(max_length=100, null=True)
    pairs_with_ref = models.CharField(max_length=100, null=True)
    caused_by = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="consequences", db_index=False, db_constraint=False
    )
    pairs_with = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="pairs", db_index=False, db_constraint=False
    )
    surface = models.CharField(max_length=6, choices=Surface)
    # What the poster gave about grouping, as it is; grouping itself is decided where inboxes are.
    groupable = models.BooleanField(null=True)
    resource_ref = models.CharField(max_length=200, null=True)
    event_family = models.CharField(max_length=100, null=True)
    flush_class = models.CharField(max_length=9, choices=FlushClass, default=FlushClass.NORMAL)
    summary_hint = models.CharField(max_length=1000, null=True)
    break_thread = models.BooleanField(default=False)
    delivery_handle = models.CharField(max_length=500, null=True)
    created_at = models.DateTimeField()
    redacted_at = models.DateTimeField(null=True)
    pruned_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "receipt_id"], name="receipts_receipt_id_once"),
            models.UniqueConstraint(fields=["tenant", "uuid"], name="receipts_receipt_uuid_once"),
            models.CheckConstraint(
                condition=~Q(id__in=[F("caused_by"), F("pairs_with")]), name="receipts_receipt_not_its_own_cause"
            ),
            models.CheckConstraint(
                condition=(Q(caused_by=None) | Q(caused_by_ref__isnull=False))
                & (Q(pairs_with=None) | Q(pairs_with_ref__isnull=False)),
                name="receipts_receipt_link_has_a_reference",
            ),
        ]
        indexes = [
            # These two serve the chain downwards (sql.CHAIN) and the removal of a receipt.
            models.Index(fields=["caused_by"], name="receipts_receipt_by_cause", condition=Q(caused_by__isnull=False)),
            models.Index(fields=["pairs_with"], name="receipts_receipt_by_pair", condition=Q(pairs_with__isnull=False)),
            # Serves digests.selectors.inbox_receipts() of one source, which may be rare.
            models.Index(
                fields=["recipient", "source_system", "id"],
                name="receipts_receipt_of_source",
                condition=Q(surface="inbox", pruned_at=None),
            ),
            # These two serve sql.ARRIVING: the receipts that wait for one that has just arrived.
            models.Index(
                fields=["tenant", "caused_by_ref"],
                name="receipts_receipt_no_cause_yet",
                condition=Q(caused_by=None, caused_by_ref__isnull=False),
            ),
            models.Index(
                fields=["tenant", "pairs_with_ref"],
                name="receipts_receipt_no_pair_yet",
                condition=Q(pairs_with=None, pairs_with_ref__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.receipt_id


class ReceiptKey(TenantModel):
    """That a source has used a dedupe key, and for what.

    Outlives its receipt, so that a late repetition is still refused; it holds digests and ids, no content.
    """

    source_system = models.CharField(max_length=50)
    key_digest = models.BinaryField(max_length=32)
    content_digest = models.BinaryField(max_length=32)
    receipt_pk = models.BigIntegerField()
    receipt_id = models.CharField(max_length=100)
    uuid = models.UUIDField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            # Is the gate of idempotency: rivals meet at its insertion.
            models.UniqueConstraint(
                fields=["tenant", "source_system", "key_digest"], name="receipts_receiptkey_used_once"
            ),
        ]


class Obligation(TenantModel):
    """What a receipt opened: the debtor owes the creditor something until a receipt pairs with it.

    A projection, kept in the transaction of the receipts that open and close it.
    """

    receipt = models.OneToOneField(
        Receipt, on_delete=models.CASCADE, primary_key=True, related_name="obligation", db_constraint=False
    )
    debtor = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="owes", db_index=False, db_constraint=False
    )
    creditor = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="awaits", db_index=False, db_constraint=False
    )
    opened_at = models.DateTimeField()
    closed_by = models.ForeignKey(
        Receipt,
        on_delete=models.SET_NULL,
        null=True,
        related_name="closed_obligations",
        db_index=False,
        db_constraint=False,
    )
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(closed_by=None) | Q(closed_at__isnull=False),
                name="receipts_obligation_closer_has_a_time",
            ),
        ]
        indexes = [
            # Serve selectors.obligations() from either side.
            models.Index(
                fields=["tenant", "debtor", "receipt"], name="receipts_obligation_owed", condition=Q(closed_at=None)
            ),
            models.Index(
                fields=["tenant", "creditor", "receipt"],
                name="receipts_obligation_awaited",
                condition=Q(closed_at=None),
            ),
            # Serves the removal of a closing receipt.
            models.Index(
                fields=["closed_by"], name="receipts_obligation_by_closer", condition=Q(closed_by__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.debtor} owes {self.creditor}"


register(Rows(table="receipts_receipt", redacted=REDACTED))
