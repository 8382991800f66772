"""Where somebody's words can stand in inboxes."""

from apps.core.erasure import Rows, register

register(
    Rows(
        table="digests_entry",
        columns=["title", "summary", "delivery_handle"],
        # An item has neither title nor summary of its own.
        redacted={
            "title": "case when title is null then null else '' end",
            "summary": "case when summary is null then null else '' end",
        },
        # A snapshot's words are those of its receipts, cut: of these which lost theirs just now. Later ones were made without.
        copied="receipt_ids && array(select id from receipts_receipt where tenant_id = %(tenant)s"
        " and redacted_at >= least(now(), gatehouse_now()))",
    ),
    Rows(
        table="digests_thread",
        columns=["resource_ref", "event_family"],
        redacted={"resource_ref": "'forgotten:' || id"},
    ),
    Rows(table="digests_source", columns=["name"], redacted={}),
)
