from apps.core.errors import Conflict, Invalid, NotFound


class UnknownReceipt(NotFound):
    """No receipt with this id or uuid is visible to the caller."""

    code = "unknown_receipt"


class DuplicateReceipt(Conflict):
    """The source has posted this very receipt before; nothing was changed."""

    code = "duplicate_receipt"


class DedupeConflict(Conflict):
    """The source has used this dedupe key for other content; nothing was changed."""

    code = "dedupe_conflict"


class ReceiptIdConflict(Conflict):
    """The receipt id belongs to a receipt with another dedupe key; nothing was changed."""

    code = "receipt_id_conflict"


class ChainCycle(Invalid):
    """The receipt would be its own cause."""

    code = "chain_cycle"


class ChainTooLong(Invalid):
    """So many receipts follow from it that finding a cycle takes too long."""

    code = "chain_too_long"


class LivesElsewhere(Invalid):
    """The recipient has moved elsewhere, and what comes by a service endpoint is not sent on."""

    code = "lives_elsewhere"
