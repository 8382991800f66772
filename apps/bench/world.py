"""Who acts in a measurement: one tenant, a service that posts, agents that read. Made by the product's services."""

from dataclasses import dataclass
from typing import Final

from django.utils import timezone

from apps.principals import services
from apps.principals.models import Principal
from apps.principals.scopes import FORBIDDEN, Kind, Scope
from apps.principals.tenancy import Caller, acting_as_system, on_behalf_of

SOURCE: Final = "bench"
AGENTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    poster: Caller
    agents: list[Caller]
    tokens: list[str]
    """Of each of them: it may do everything an agent may, and post as the source."""

    @property
    def token(self) -> str:
        """Of the first."""
        return self.tokens[0]


def make() -> World:
    """The world of a fresh database."""
    now = timezone.now()
    with acting_as_system("measuring"):
        tenant = services.create_tenant(slug="bench", name="Bench", now=now)
        poster = _principal(tenant.pk, "poster", Kind.SERVICE)
        agents = [_principal(tenant.pk, f"agent-{number}", Kind.AI) for number in range(AGENTS)]
        scopes = frozenset(Scope) - {Scope.ADMIN} - FORBIDDEN[Kind.AI]
        tokens = [
            services.issue_token(principal=agent, scopes=scopes, source_systems=[SOURCE], now=now).secret.text
            for agent in agents
        ]
        return World(poster=on_behalf_of(poster), agents=[on_behalf_of(agent) for agent in agents], tokens=tokens)


def _principal(tenant_id: int, name: str, kind: Kind) -> Principal:
    return services.add_principal(tenant_id=tenant_id, name=name, kind=kind, now=timezone.now())
