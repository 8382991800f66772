"""What DeleGates may promote to knowledge by themselves."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.principals.models import Principal, TenantModel


class PromotionPolicy(TenantModel):
    """That a DeleGate may write knowledge of these domains, from this confidence on; without one it may none."""

    delegate = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    domains = ArrayField(models.CharField(max_length=100))
    confidence_threshold = models.FloatField()
    requires_novel = models.BooleanField()
    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    revised_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "promotion policies"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "delegate"], name="memory_promotionpolicy_once"),
            models.CheckConstraint(
                condition=Q(confidence_threshold__gte=0, confidence_threshold__lte=1),
                name="memory_promotionpolicy_threshold_between_0_and_1",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.delegate}: {', '.join(self.domains)}"
