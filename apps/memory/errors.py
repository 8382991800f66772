from apps.core.errors import Conflict, Forbidden, Invalid, Malformed, NotFound


class UnknownMemory(NotFound):
    """The reference names nothing that the caller's tenant remembers."""

    code = "unknown_memory"


class AlreadySuperseded(Conflict):
    """A newer statement stands in the place of this one; supersede that one instead."""

    code = "already_superseded"


class AboutAnother(Conflict):
    """What is said of a subject stands in the place of what was said of the same one: say it in a conversation with it."""

    code = "about_another"


class ConversationFull(Conflict):
    """The conversation has as many turns as one can have."""

    code = "conversation_full"


class AliasTaken(Conflict):
    """The name or alias already stands for another concept."""

    code = "alias_taken"


class TooManyAliases(Conflict):
    """The concept would have more aliases than one can have."""

    code = "too_many_aliases"


class UnusableName(Invalid):
    """In the form that names are compared by, the name is nothing at all, or too long."""

    code = "unusable_name"


class NotADelegate(Invalid):
    """Policies of promotion are about DeleGates alone."""

    code = "not_a_delegate"


class PromotionNeeded(Forbidden):
    """A DeleGate writes what it did (domain `delegation_trace`); what it learned becomes knowledge by promotion alone."""

    code = "promotion_needed"


class MalformedMemoryReference(Malformed):
    """The text is no reference to a memory."""

    code = "malformed_memory_reference"


class ClashingFilters(Malformed):
    """Two of the filters are about the same place of the metadata."""

    code = "clashing_filters"


class UnknownSubject(NotFound):
    """Nothing is remembered of a subject of this id, or the caller may not know."""

    code = "unknown_subject"


class SubjectExists(Conflict):
    """There is a subject of this id."""

    code = "subject_exists"


class TooManyPreferences(Conflict):
    """The subject would have more preferences than one can have; take some back."""

    code = "too_many_preferences"


class MemoryDisabled(Forbidden):
    """The subject wants nothing remembered."""

    code = "memory_disabled"


class SharedByAnother(Forbidden):
    """Who else may know the subject is for who added it to say, and for who administers the tenant."""

    code = "shared_by_another"


class SettledByAnother(Forbidden):
    """What the subject has settled is for who added it to lift, and for who administers the tenant; anybody may settle more."""

    code = "settled_by_another"


class PatternsNotLearned(Forbidden):
    """The subject wants no patterns learned."""

    code = "patterns_not_learned"


class StatementStands(Conflict):
    """The subject itself has said otherwise, and what is learned does not undo that."""

    code = "statement_stands"


class Echo(Conflict):
    """The caller was given this very text as a memory of the subject; that it is repeated is no new evidence."""

    code = "echo"


class ImpossiblePeriod(Invalid):
    """What is said to be so ends before it begins."""

    code = "impossible_period"
