from datetime import timedelta

from apps.core.ticks import tick
from apps.receipts import services


@tick(every=timedelta(seconds=1))
def announce_letters() -> None:
    """Announce again what is due: its hint was lost, or a pause is over. Without any hint this alone delivers."""
    services.announce_due()


@tick(every=timedelta(seconds=1))
def link_waiting() -> None:
    """Link what very many posts have said of a receipt before it arrived."""
    services.link_waiting()
