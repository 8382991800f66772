"""Where somebody's words can stand in receipts."""

from apps.core.erasure import Rows, register
from apps.receipts.models import REDACTED

register(
    Rows(
        table="receipts_receipt",
        columns=[
            "receipt_id",
            "event_type",
            "event_family",
            "source_system",
            "caused_by_ref",
            "pairs_with_ref",
            *REDACTED,
        ],
        redacted=REDACTED,
    ),
    Rows(table="receipts_letter", columns=["said"], redacted={"said": "null"}),
    Rows(table="receipts_receiptkey", columns=["receipt_id"], redacted={}),
    Rows(table="receipts_unmatchedcloser", columns=["reference"], redacted={}),
    Rows(table="receipts_remotetarget", columns=["name", "known_as"], redacted={}),
    Rows(table="receipts_residence", columns=["name_there"], redacted={}),
)
