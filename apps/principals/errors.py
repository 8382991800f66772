from apps.core.errors import Conflict, NotFound


class UnknownPrincipal(NotFound):
    """No principal of this name is visible to the caller."""

    code = "unknown_principal"


class NameTaken(Conflict):
    """The tenant has a principal of this name."""

    code = "name_taken"
