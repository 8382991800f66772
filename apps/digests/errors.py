from apps.core.errors import Conflict, Invalid, Malformed, NotFound


class UnknownEntry(NotFound):
    """The inbox has no entry of this reference."""

    code = "unknown_entry"


class BadToken(Malformed):
    """An as-of token that no read of this inbox has given out."""

    code = "bad_token"


class AheadOfInbox(Invalid):
    """A start that the inbox has not come to, so that nothing would be shown until it has."""

    code = "ahead_of_inbox"


class NotInInbox(Conflict):
    """The receipt stands in the ledger only: it can be read, there is nothing to ack or archive."""

    code = "not_in_inbox"


class UnknownPolicy(NotFound):
    """The inbox has no policy for this source alone."""

    code = "unknown_policy"


class TooManyPolicies(Conflict):
    """The inbox has as many policies of single sources as it may."""

    code = "too_many_policies"
