from apps.core.errors import Conflict, Forbidden, Invalid, NotFound


class UnknownPrincipal(NotFound):
    """No principal of this name is visible to the caller."""

    code = "unknown_principal"


class UnknownTenant(NotFound):
    code = "unknown_tenant"


class UnknownToken(NotFound):
    code = "unknown_token"


class NameTaken(Conflict):
    """The tenant has a principal of this name."""

    code = "name_taken"


class UnusableName(Invalid):
    """A name that can't stand in an address."""

    code = "unusable_name"


class BuiltIn(Conflict):
    """The gates' own principals are part of every tenant and stay as they are."""

    code = "built_in_principal"


class ScopeNotForKind(Invalid):
    """A principal of this kind can't hold this scope."""

    code = "scope_not_for_kind"


class ImpossiblePeriod(Invalid):
    """Nothing is kept for no time."""

    code = "impossible_period"


class WeakSecret(Invalid):
    """A text that is too easily guessed to be a token, or that is another's token."""

    code = "weak_secret"


class NotThisCaller(Forbidden):
    """The token acts for another principal."""

    code = "not_this_caller"
