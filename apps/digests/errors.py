from apps.core.errors import Malformed, NotFound


class UnknownEntry(NotFound):
    """The inbox has no entry of this reference."""

    code = "unknown_entry"


class BadToken(Malformed):
    """An as-of token that no read of this inbox has given out."""

    code = "bad_token"
