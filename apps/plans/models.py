"""Plans, and what was learned from them."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.plans import documents
from apps.plans.documents import PlanStatus
from apps.principals.models import Principal, TenantModel

_STATUSES = [(status.value, status.value) for status in PlanStatus]


class Plan(TenantModel):
    """One plan as it was made, a refusal included. It never changes: a better one is another plan, which replaces it.

    Only `waits_until` and `completed` change. Whoever sets the first to null decides what becomes of the plan.
    """

    plan_id = models.CharField(max_length=100)
    delegate = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="+", db_index=False, help_text="The DeleGate that made it."
    )
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, related_name="+", db_index=False, help_text="Who asked for it."
    )
    intent = models.TextField()
    status = models.CharField(max_length=20, choices=_STATUSES)
    document = models.JSONField()
    receipt_id = models.CharField(max_length=100)
    receipt_uuid = models.UUIDField()
    created_at = models.DateTimeField()
    replaces = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="successors", db_index=False)
    waits_until = models.DateTimeField(
        null=True, help_text="Until then it can be begun. Empty: it was begun, replaced, abandoned, or is not ready."
    )
    completed = ArrayField(
        models.CharField(max_length=64),
        null=True,
        help_text="The steps with tools that ran to their end. Empty: none yet.",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "plan_id"], name="plans_plan_id_once"),
            models.UniqueConstraint(fields=["tenant", "replaces"], name="plans_plan_replaced_once"),
        ]
        permissions = [("operate_plan", "Can confirm plans and answer their questions")]
        indexes = [
            # Serves tools.list_plans(): one principal's plans, newest first.
            models.Index(name="plans_plan_of_principal", fields=["tenant", "principal", "-id"]),
            # Serves selectors.expired(), over all tenants.
            models.Index(name="plans_plan_waiting", fields=["waits_until"], condition=~Q(waits_until=None)),
            # Serves services.learn() and selectors.tenants_with_lessons(): those that were carried out.
            models.Index(name="plans_plan_completed", fields=["tenant", "-id"], condition=~Q(completed=None)),
        ]

    def __str__(self) -> str:
        return self.plan_id

    @property
    def is_forgotten(self) -> bool:
        """Was what it said forgotten on request? Nobody can carry it out any more."""
        return not self.intent

    @property
    def is_ready(self) -> bool:
        """Can it be carried out, or does it say what it needs?"""
        return self.status == PlanStatus.READY

    @property
    def can_be_begun(self) -> bool:
        """Does it wait for somebody to carry it out: is it ready, not begun, not replaced, not forgotten, not abandoned?"""
        return self.waits_until is not None and not self.is_forgotten

    @property
    def next_step(self) -> str:
        """What to do next, in one plain sentence."""
        return documents.next_step(self.document)


class LearnedModel(TenantModel):
    """What was learned from the plans that a tenant has carried out. A new one takes the place of the old one."""

    learned_from = models.PositiveIntegerField(help_text="How many plans there were that had been carried out.")
    body = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant"], name="plans_learnedmodel_one_a_tenant")]
