"""Targets, the deliveries that wait for them, and the principals whose receipts go to another deployment."""

from datetime import timedelta
from typing import Final

from django.db import models
from django.db.models import F, Q

from apps.core.ids import format_ref
from apps.principals.models import Principal, TenantModel

LONGEST_LEASE: Final = timedelta(days=7)


class Kind(models.TextChoices):
    """What a target is called for. Each kind has a sender, which is registered in `senders`."""

    WEBHOOK = "webhook"
    REMOTE = "remote"


class Endpoint(models.TextChoices):
    """The endpoint of a remote inbox service, and with it the members that are sent.

    `universal` gets the documented members only; `gatehouse` is the same endpoint of another deployment of this
    product, which also understands group, delivery handle and surface.
    """

    INBOX = "inbox"
    UNIVERSAL = "universal"
    GATEHOUSE = "gatehouse"


class State(models.TextChoices):
    """A pending delivery has a due time; the target has confirmed a delivered one; an operator may replay a dead one."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class Target(TenantModel):
    """An address to which this deployment POSTs.

    A `webhook` belongs to a principal and wakes it when its inbox has something new. Its calls are signed with the
    secret (Standard Webhooks); after a rotation the former secret signs as well, until `former_secret_until`. All of
    the inbox up to `covered_seq` has been announced.

    A `remote` belongs to the tenant: an inbox service that takes receipts. The secret is the service token that it
    has issued. Secrets are sealed and never shown.

    The circuit breaker opens after several failures in a row: nothing is sent before `retry_at`, then one delivery as
    a probe. One worker process at a time calls a target, until `busy_until` at the latest. The counters are stored
    here, so that they outlive every process and every delivery.
    """

    kind = models.CharField(max_length=10, choices=Kind)
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, null=True, related_name="targets", db_index=False
    )
    name = models.CharField(max_length=50, null=True)
    url = models.CharField(max_length=500)
    secret = models.TextField(editable=False)
    former_secret = models.TextField(null=True, editable=False)
    former_secret_until = models.DateTimeField(null=True)
    timeout_seconds = models.PositiveSmallIntegerField(default=10)
    endpoint = models.CharField(max_length=9, choices=Endpoint, null=True)
    known_as = models.CharField(
        max_length=50, null=True, help_text="The source system that it knows this deployment by; empty: each its own."
    )
    notify_lease = models.DurationField(
        default=timedelta(minutes=10),
        help_text="After a wake the target is left alone for this time, or until everything it was woken for is acked.",
    )
    min_unacked = models.IntegerField(default=1, help_text="Fewer unacked receipts than this wake nobody.")
    covered_seq = models.BigIntegerField(default=0)
    woken_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)
    stopped_reason = models.CharField(max_length=200, null=True)
    failures_in_a_row = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    busy_until = models.DateTimeField(null=True)
    result = models.CharField(max_length=200, null=True, help_text="Of the last call.")
    sent = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    dead = models.PositiveBigIntegerField(default=0)
    wasted = models.PositiveBigIntegerField(
        default=0, help_text="Wakes for which everything had been acked by requests that began before the call."
    )
    delivery_seconds = models.FloatField(default=0, help_text="Sum of the times from creation to delivery.")
    created_at = models.DateTimeField()

    class Meta:
        permissions = [("operate_target", "Can stop and resume targets, and replay dead deliveries")]
        constraints = [
            # Serves selectors.target_of() and the list of a principal's webhooks.
            models.UniqueConstraint(fields=["tenant", "principal", "url"], name="delivery_target_url_once"),
            models.UniqueConstraint(fields=["tenant", "name"], name="delivery_target_name_once"),
            models.CheckConstraint(
                condition=Q(kind=Kind.WEBHOOK, principal__isnull=False, name=None, endpoint=None, known_as=None)
                | Q(kind=Kind.REMOTE, principal=None, name__isnull=False, endpoint__in=Endpoint.values),
                name="delivery_target_has_what_its_kind_needs",
            ),
            models.CheckConstraint(
                condition=Q(stopped_at=None, stopped_reason=None)
                | Q(stopped_at__isnull=False, stopped_reason__isnull=False),
                name="delivery_target_stopped_has_a_reason",
            ),
            models.CheckConstraint(
                condition=Q(timeout_seconds__range=(1, 60), min_unacked__gte=1, covered_seq__gte=0)
                & Q(notify_lease__range=(timedelta(0), LONGEST_LEASE), wasted__lte=F("sent")),
                name="delivery_target_numbers_in_bounds",
            ),
            models.CheckConstraint(
                condition=Q(former_secret=None, former_secret_until=None)
                | Q(former_secret__isnull=False, former_secret_until__isnull=False),
                name="delivery_target_former_secret_has_an_end",
            ),
        ]
        # Serves services.sending.TAKE_TARGET: the targets that are called at this moment.
        indexes = [models.Index(fields=["busy_until"], name="delivery_target_busy")]

    def __str__(self) -> str:
        return self.name or self.ref

    @property
    def ref(self) -> str:
        return format_ref("tgt", self.pk)

    @property
    def notify_lease_ms(self) -> int:
        return self.notify_lease // timedelta(milliseconds=1)

    @property
    def state(self) -> str:
        return "stopped" if self.stopped_at else "enabled"

    @property
    def breaker(self) -> str:
        return "open" if self.retry_at else "closed"


class Delivery(TenantModel):
    """Something to be sent to a target, written in the transaction that caused it.

    The sender of the target's kind chooses what is sent, right before the call. A remote's delivery carries the
    receipt with the primary key `object_id`. A webhook's carries nothing of its own: a target has one at a time, and the row
    is deleted once it is delivered.

    A worker process claims a delivery first: `due_at` moves to the moment at which the claim counts as lost, and
    identifies the claim. So a delivery may be sent twice; a remote recognizes the repetition by its dedupe key.
    """

    target = models.ForeignKey(Target, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    object_id = models.BigIntegerField(null=True)
    reference = models.CharField(max_length=100, null=True, help_text="The id of the receipt.")
    recipient = models.CharField(max_length=50, null=True, help_text="The recipient's name at the target.")
    state = models.CharField(max_length=9, choices=State, default=State.PENDING)
    due_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    failure = models.CharField(max_length=50, null=True)
    said = models.CharField(max_length=600, null=True)
    remote_id = models.CharField(max_length=100, null=True, help_text="What the target calls it.")
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "object_id", "target"], name="delivery_delivery_once_per_target"),
            models.UniqueConstraint(
                fields=["tenant", "target"],
                condition=Q(object_id=None, state=State.PENDING),
                name="delivery_delivery_one_wake_at_a_time",
            ),
            models.CheckConstraint(
                condition=Q(state=State.PENDING, due_at__isnull=False, settled_at=None)
                | Q(state=State.DELIVERED, due_at=None, settled_at__isnull=False)
                | Q(state=State.DEAD, due_at=None, settled_at__isnull=False, failure__isnull=False),
                name="delivery_delivery_due_iff_pending",
            ),
        ]
        indexes = [
            # Serves claims, services.sending.TAKE_TARGET and the counts of what waits.
            models.Index(
                fields=["target", "due_at", "id"], name="delivery_delivery_due", condition=Q(state=State.PENDING)
            ),
            # Serves the list of a target's deliveries and replays.
            models.Index(fields=["target", "state", "id"], name="delivery_delivery_by_state"),
            # Serves the removal of a receipt, and who may close the obligation that it opened.
            models.Index(
                fields=["object_id"], name="delivery_delivery_by_object", condition=Q(object_id__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.ref

    @property
    def ref(self) -> str:
        return format_ref("delivery", self.pk)


class RemoteRoute(TenantModel):
    """The principal has moved: what is posted to it goes to a remote target, and into no inbox here."""

    principal = models.OneToOneField(Principal, on_delete=models.PROTECT, primary_key=True, related_name="moved_to")
    target = models.ForeignKey(Target, on_delete=models.PROTECT, related_name="routes")
    remote_name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return f"{self.remote_name} at {self.target}"
