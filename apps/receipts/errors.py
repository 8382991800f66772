from apps.core.errors import Conflict, NotFound


class UnknownReceipt(NotFound):
    """No receipt with this id or uuid is visible to the caller."""

    code = "unknown_receipt"


class DuplicateReceipt(Conflict):
    """The source has posted this very receipt before; nothing was changed."""

    code = "duplicate_receipt"
