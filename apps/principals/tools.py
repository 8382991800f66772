"""Operations about the caller itself."""

from apps.core.operations import Route, operation
from apps.core.schemas import Empty, Output
from apps.principals.tenancy import Caller


class Identity(Output):
    """Who the presented token stands for."""

    principal: str
    kind: str
    tenant: str
    scopes: list[str]
    source_systems: list[str]


@operation(title="Who am I", routes=[Route("GET", "/api/v1/whoami")], read_only=True)
def whoami(caller: Caller, given: Empty) -> Identity:
    """Say which principal, tenant and scopes this token stands for."""
    return Identity(
        principal=caller.name,
        kind=caller.kind,
        tenant=caller.tenant_slug,
        scopes=sorted(caller.scopes),
        source_systems=sorted(caller.source_systems),
    )
