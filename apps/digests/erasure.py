"""What inboxes lose when a subject is forgotten."""

from apps.core.erasure import Rows, register

register(
    Rows(
        table="digests_entry",
        # An item has neither title nor summary of its own.
        redacted={
            "title": "case when title is null then null else '' end",
            "summary": "case when summary is null then null else '' end",
        },
        # A snapshot quotes its receipts. Later snapshots are made without redacted ones.
        also="receipt_ids && array(select id from receipts_receipt where tenant_id = %(tenant)s"
        " and redacted_at >= least(now(), gatehouse_now()))",
    ),
    Rows(table="digests_thread", redacted={"resource_ref": "'forgotten:' || id"}),
)
