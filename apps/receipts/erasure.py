"""What receipts lose when a subject is forgotten."""

from apps.core.erasure import Rows, register
from apps.receipts.models import REDACTED

register(
    Rows(table="receipts_receipt", redacted=REDACTED),
)
