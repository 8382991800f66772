"""The items that are receipts, and the sessions that inherited them."""

from django.db import models
from django.db.models import Q

from apps.handoff.items import Kind, Priority
from apps.principals.models import Principal, TenantModel


class Handoff(TenantModel):
    """An item that a session left for a principal, and the session that inherited it.

    The text is in the receipt. A plain receipt of the source gets a row when it is inherited.
    """

    recipient = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    receipt_id = models.CharField(max_length=100)
    project = models.CharField(max_length=100, blank=True)
    kind = models.CharField(max_length=8, choices=[(one.value, one.value) for one in Kind])
    priority = models.CharField(max_length=6, choices=[(one.value, one.value) for one in Priority])
    from_session = models.CharField(max_length=100)
    left_at = models.DateTimeField()
    inherited_by = models.CharField(max_length=100, null=True)
    inherited_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            # Decides between two sessions that inherit at once.
            models.UniqueConstraint(fields=["tenant", "receipt_id"], name="handoff_handoff_receipt_once"),
            models.CheckConstraint(
                condition=Q(inherited_by=None, inherited_at=None)
                | Q(inherited_by__isnull=False, inherited_at__isnull=False),
                name="handoff_handoff_inherited_by_a_session",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=[one.value for one in Kind]), name="handoff_handoff_kind_known"
            ),
            models.CheckConstraint(
                condition=Q(priority__in=[one.value for one in Priority]), name="handoff_handoff_priority_known"
            ),
        ]
        indexes = [
            # Serves services.inherit() with `again`.
            models.Index(
                fields=["recipient", "inherited_by"],
                name="handoff_handoff_of_session",
                condition=Q(inherited_at__isnull=False),
            ),
            # Serves services.tidy().
            models.Index(
                fields=["inherited_at"], name="handoff_handoff_by_age", condition=Q(inherited_at__isnull=False)
            ),
            # Serves the operator's list of one project.
            models.Index(fields=["tenant", "project", "-id"], name="handoff_handoff_of_project"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} from {self.from_session}"
