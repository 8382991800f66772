"""How much is remembered, summed up now and then."""

from typing import Final

from apps.memory import sql
from apps.principals.tenancy import acting_as_system

_SCOPES_A_ROUND: Final = 100


def fold_tallies() -> None:
    """Make one row of each tenant's tallies, so that a reader has few to sum. Sums stay what they are."""
    with acting_as_system("tallies are folded"):
        sql.fold_tallies()


def count_common_words() -> int:
    """Count the common words of what has changed by a tenth since they were counted; says of how many scopes."""
    for counted in range(_SCOPES_A_ROUND):
        with acting_as_system("common words are counted"):
            if not sql.count_common_words(sql.COMMON):
                return counted
    return _SCOPES_A_ROUND
