"""What DeleGates may promote."""

from collections.abc import Iterable

from apps.memory.models import PromotionPolicy


def promotion_policies(principal_ids: Iterable[int]) -> dict[int, PromotionPolicy]:
    """The promotion policies of these principals, by whose they are; who has none may promote nothing."""
    return {policy.delegate_id: policy for policy in PromotionPolicy.objects.filter(delegate__in=list(principal_ids))}
