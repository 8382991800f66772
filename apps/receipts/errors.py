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


class UnknownTarget(NotFound):
    """The tenant has no remote target of this name."""

    code = "unknown_target"


class UnusableTarget(Invalid):
    """The target's address or credential can't be used as it was given."""

    code = "unusable_target"


class LivesHere(NotFound):
    """The principal has its inbox here, not elsewhere."""

    code = "lives_here"


class LivesElsewhere(Invalid):
    """The principal has its inbox elsewhere, and what comes by a service door is not sent on."""

    code = "lives_elsewhere"


class NotDead(Conflict):
    """Only dead letters are replayed."""

    code = "not_dead"


class ChainCycle(Invalid):
    """The receipt would be its own cause."""

    code = "chain_cycle"


class ChainTooLong(Invalid):
    """So much hangs from the receipt, and it from so much, that nobody looks whether it would be its own cause."""

    code = "chain_too_long"
