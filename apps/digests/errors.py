from apps.core.errors import Conflict, Malformed, NotFound


class UnknownEntry(NotFound):
    """The inbox has no entry of this reference."""

    code = "unknown_entry"


class BadToken(Malformed):
    """An as-of token that no read of this inbox has given out."""

    code = "bad_token"


class NotInInbox(Conflict):
    """The receipt stands in the ledger only: it can be read, there is nothing to ack or archive."""

    code = "not_in_inbox"
