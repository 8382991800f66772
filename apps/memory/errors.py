from apps.core.errors import Conflict, Invalid, Malformed, NotFound


class UnknownMemory(NotFound):
    """The reference names nothing that the caller's tenant remembers."""

    code = "unknown_memory"


class AlreadySuperseded(Conflict):
    """A newer statement stands in the place of this one; supersede that one instead."""

    code = "already_superseded"


class ConversationFull(Conflict):
    """The conversation has as many turns as one can have."""

    code = "conversation_full"


class AliasTaken(Conflict):
    """The name or alias already stands for another concept."""

    code = "alias_taken"


class UnusableName(Invalid):
    """In the form that names are compared by, the name is nothing at all, or too long."""

    code = "unusable_name"


class NotADelegate(Invalid):
    """Policies of promotion are about DeleGates alone."""

    code = "not_a_delegate"


class MalformedMemoryReference(Malformed):
    """The text is no reference to a memory."""

    code = "malformed_memory_reference"
