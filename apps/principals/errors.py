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


class ScopeNotForKind(Invalid):
    """A principal of this kind can't hold this scope."""

    code = "scope_not_for_kind"


class NotThisCaller(Forbidden):
    """The token acts for another principal."""

    code = "not_this_caller"
