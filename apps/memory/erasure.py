"""Where somebody's words can stand in memory."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from apps.core.erasure import Rows, Wanted, register
from apps.memory import services


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """Memories of a kind: a command forgets them together with what they are found by."""

    rows: Rows
    forget: Callable[[Collection[int]], int]

    @property
    def name(self) -> str:
        return self.rows.name

    def count(self, wanted: Wanted) -> int:
        return self.rows.count(wanted)

    def erase(self, wanted: Wanted) -> int:
        found = self.rows.numbers(wanted)
        return self.forget(found) if found else 0


class Subjects:
    """What is told of subjects goes entry by entry; what they are called stays."""

    rows = services.SUBJECTS
    name = rows.name

    def count(self, wanted: Wanted) -> int:
        return services.still_telling(wanted)

    def erase(self, wanted: Wanted) -> int:
        return services.forget_entries(wanted)


register(
    Memories(rows=services.ITEMS, forget=services.forget_items),
    Memories(rows=services.SESSIONS, forget=services.forget_sessions),
    Memories(rows=services.OBSERVATIONS, forget=services.forget_observations),
    Memories(rows=services.PATTERNS, forget=services.forget_patterns),
    Memories(rows=services.CONCEPTS, forget=services.forget_concepts),
    services.PATTERN_REVISIONS,
    services.CONCEPT_REVISIONS,
    services.RELATIONSHIPS,
    Subjects(),
    Rows(table="memory_passage", columns=["domain"], redacted={}),
    Rows(table="memory_memorypolicy", columns=["share_with"], redacted={}),
    Rows(table="memory_promotionpolicy", columns=["domains"], redacted={}),
)
