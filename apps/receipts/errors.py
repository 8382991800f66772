from apps.core.errors import Conflict, Invalid, NotFound


class UnknownReceipt(NotFound):
    """No receipt of this id or uuid is visible to the caller."""

    code = "unknown_receipt"


class UnknownRecipient(NotFound):
    """The tenant has no principal of the recipient's name."""

    code = "unknown_recipient"


class DuplicateReceipt(Conflict):
    """The source has posted this very receipt before; nothing was changed."""

    code = "duplicate_receipt"


class DedupeConflict(Conflict):
    """The source has used this dedupe key for another content; nothing was changed."""

    code = "dedupe_conflict"


class ReceiptIdConflict(Conflict):
    """The receipt id belongs to a receipt with another dedupe key; nothing was changed."""

    code = "receipt_id_conflict"


class ChainCycle(Invalid):
    """The receipt would be its own cause."""

    code = "chain_cycle"
