"""Where agents want to be woken, and how far they have been."""

from datetime import timedelta
from typing import Final

from django.db import models
from django.db.models import Q

from apps.activation.states import Kind, State
from apps.principals.models import Principal, TenantModel

LONGEST_LEASE: Final = timedelta(days=7)


class Target(TenantModel):
    """An address at which a principal wants to be woken when its inbox has something new.

    The secret that signs the calls is sealed (`core.sealing`). After a rotation the former one signs as well, until
    `former_secret_until`.
    """

    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="targets", db_index=False)
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.WEBHOOK)
    url = models.CharField(max_length=500)
    notify_lease = models.DurationField(
        default=timedelta(minutes=10),
        help_text="After a wake the target is left alone for so long, or until all that it was woken for is acked.",
    )
    min_unacked = models.IntegerField(default=1, help_text="Fewer unacked receipts than this are not worth a wake.")
    with_titles = models.BooleanField(default=False, help_text="A wake names titles and sources, not refs alone.")
    state = models.CharField(max_length=10, choices=State, default=State.ENABLED)
    stopped_reason = models.CharField(max_length=200, null=True)
    stopped_at = models.DateTimeField(null=True)
    secret = models.TextField()
    former_secret = models.TextField(null=True)
    former_secret_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        permissions = [("operate_target", "Can stop and resume targets")]
        constraints = [
            # Serves sql.READY of some principals, and selectors.targets().
            models.UniqueConstraint(fields=["tenant", "principal", "url"], name="activation_target_url_once"),
            models.CheckConstraint(condition=Q(kind__in=Kind.values), name="activation_target_kind_known"),
            models.CheckConstraint(
                condition=Q(state=State.ENABLED, stopped_reason=None, stopped_at=None)
                | Q(state=State.STOPPED, stopped_reason__isnull=False, stopped_at__isnull=False),
                name="activation_target_stopped_has_a_reason",
            ),
            models.CheckConstraint(
                condition=Q(notify_lease__range=(timedelta(0), LONGEST_LEASE), min_unacked__gte=1),
                name="activation_target_policy_possible",
            ),
            models.CheckConstraint(
                condition=Q(former_secret=None, former_secret_until=None)
                | Q(former_secret__isnull=False, former_secret_until__isnull=False),
                name="activation_target_former_secret_has_an_end",
            ),
        ]

    def __str__(self) -> str:
        return f"tgt_{self.pk}"


class Dispatch(TenantModel):
    """How far a target has been woken: everything in the inbox up to `covered_seq` was announced.

    `next_at` is when it may be called at the earliest: at once, after a failure's pause, or when the claim of
    whoever calls just now runs out. `fence` counts claims; only the last one writes. The counters are kept for
    operators.

    Worker processes take what was announced, in turn: `announced_until` stands while it waits for one of them, and as
    long as it is in the future nobody announces it again. Until `busy_until` it holds one of the places for calls, and
    of these a principal and a tenant have a share; when it is past, that is when the last place was given back.
    """

    target = models.OneToOneField(Target, on_delete=models.CASCADE, primary_key=True, related_name="dispatch")
    covered_seq = models.BigIntegerField(default=0)
    fence = models.BigIntegerField(default=0)
    attempts = models.IntegerField(default=0, help_text="Failures since the last wake.")
    next_at = models.DateTimeField()
    announced_until = models.DateTimeField(null=True)
    busy_until = models.DateTimeField(null=True)
    woken_at = models.DateTimeField(null=True)
    tried_at = models.DateTimeField(null=True)
    result = models.CharField(max_length=200, null=True)
    sent = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    wasted = models.BigIntegerField(
        default=0, help_text="Wakes for which everything had been acked by requests that began before the call."
    )

    class Meta:
        verbose_name_plural = "dispatches"
        constraints = [
            models.CheckConstraint(
                condition=Q(covered_seq__gte=0, fence__gte=0, attempts__gte=0, sent__gte=0, failed__gte=0)
                & Q(wasted__range=(0, models.F("sent"))),
                name="activation_dispatch_counts_from_zero",
            ),
        ]
        indexes = [
            # Serves sql.READY, every second.
            models.Index(fields=["next_at"], name="activation_dispatch_next"),
            # Serve sql.TAKE: who waits for a place, and who has one.
            models.Index(
                fields=["target"], name="activation_dispatch_waiting", condition=Q(announced_until__isnull=False)
            ),
            models.Index(fields=["busy_until"], name="activation_dispatch_busy"),
        ]

    def __str__(self) -> str:
        return f"dispatch of tgt_{self.pk}"
