"""How much is remembered, summed up now and then."""

from apps.memory import sql
from apps.principals.tenancy import acting_as_system


def fold_tallies() -> None:
    """Make one row of each tenant's tallies, so that a reader has few to sum. Sums stay what they are."""
    with acting_as_system("tallies are folded"):
        sql.fold_tallies()
