"""Which posts a source's hourly limit lets in."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from apps.core.errors import RateLimited
from apps.digests import selectors
from apps.principals import limits
from apps.principals.limits import Quota
from apps.receipts import selectors as receipts
from apps.receipts.services import ReceiptDraft


class Admission:
    """Posts that are about to be made, counted against the limits of their sources.

    A repetition is let in without being counted, so that it is refused as what it is. `refused` holds the others that
    there is no room for, by their place among the drafts.
    """

    def __init__(self, *, tenant_id: int, drafts: Sequence[ReceiptDraft], now: datetime) -> None:
        self.refused: dict[int, RateLimited] = {}
        self._counted: list[tuple[Quota, list[int], int]] = []
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, draft in enumerate(drafts):
            places[draft.source_system].append(place)
        for source, its_places in places.items():
            self._count(_quota(tenant_id, source, now), drafts, its_places)

    def settle(self, stored: Collection[int]) -> None:
        """Uncount what was not stored; `stored` are places among the drafts."""
        for quota, places, granted in self._counted:
            quota.give_back(max(0, granted - len(set(places) & set(stored))))

    def _count(self, quota: Quota, drafts: Sequence[ReceiptDraft], places: list[int]) -> None:
        # Of several drafts of one key one is stored at most.
        keys = list(dict.fromkeys(drafts[place].dedupe_key for place in places))
        granted = quota.take(len(keys), leaving=(quota.per_hour + 1) // 2)
        if granted == len(keys):
            self._counted.append((quota, places, granted))
            return
        # Where room may run out, repetitions are not counted even for a moment, in which a new one would lack it.
        quota.give_back(granted)
        known = receipts.used_keys(quota.tenant_id, quota.source_system, keys)
        new = [key for key in keys if key not in known]
        granted = quota.take(len(new))
        self._counted.append((quota, places, granted))
        refused = set(new[granted:])
        for place in places:
            if drafts[place].dedupe_key in refused:
                self.refused[place] = RateLimited(
                    f"{quota.source_system} has posted its {quota.per_hour} receipts of this hour.",
                    retry_after=quota.retry_after,
                )


def _quota(tenant_id: int, source: str, now: datetime) -> Quota:
    own = selectors.source_rule(tenant_id, source).rate_per_hour
    return Quota(
        tenant_id=tenant_id,
        source_system=source,
        per_hour=limits.per_hour(source) if own is None else own,
        now=now,
    )
