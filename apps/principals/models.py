"""Tenants, who operates them, who acts in them, and the tokens that prove it.

A token's text is `ght_<prefix>_<secret>`, of which the database keeps the prefix and a digest. An operator may also let
another product's text be a token; of these the database keeps the digest alone.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.principals.scopes import Kind, Scope


class Tenant(models.Model):
    """One customer of this deployment. Nothing crosses from one tenant to another."""

    slug = models.SlugField(max_length=50, unique=True)
    name = models.CharField(max_length=200)
    keep_receipts = models.DurationField(
        null=True, help_text="How long a receipt is kept once it is acked; empty: as the deployment's settings say."
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(keep_receipts=None) | Q(keep_receipts__gt=timedelta(0)),
                name="principals_tenant_keeps_receipts_a_while",
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class TenantModel(models.Model):
    """A row behind the tenant wall: every unique key begins with the tenant, row-level security enforces it."""

    # Without a constraint: row-level security names the tenant, and a trigger keeps it from being deleted.
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_index=False, db_constraint=False, related_name="+", editable=False
    )

    class Meta:
        abstract = True


class Operator(AbstractUser):
    """A person with a console. Sees the tenants of its memberships; a superuser sees all."""

    class Meta(AbstractUser.Meta):
        verbose_name = "operator"
        verbose_name_plural = "operators"


class Membership(models.Model):
    """That an operator may see a tenant, and in which role."""

    class Role(models.TextChoices):
        VIEWER = "viewer"
        OPERATOR = "operator"
        OWNER = "owner"

    operator = models.ForeignKey(Operator, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.VIEWER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["operator", "tenant"], name="principals_membership_once"),
        ]

    def __str__(self) -> str:
        return f"{self.operator} in {self.tenant} as {self.role}"


class PrincipalQuerySet(models.QuerySet["Principal"]):
    def named(self, name: str) -> "PrincipalQuerySet":
        return self.filter(name=name)

    def enabled(self) -> "PrincipalQuerySet":
        return self.filter(disabled_at=None)


class Principal(TenantModel):
    """Who acts within a tenant: an agent, a service, a worker or a delegate.

    The name is what `recipient_ai` and `principal_ai` say. `parent` is who a delegate or agent reports to; a
    principal without one is at the top.
    """

    name = models.CharField(max_length=50)
    kind = models.CharField(max_length=10, choices=Kind)
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="children", db_index=False)
    created_at = models.DateTimeField()
    disabled_at = models.DateTimeField(null=True)

    objects = PrincipalQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="principals_principal_name_once"),
            models.CheckConstraint(condition=~Q(parent=F("id")), name="principals_principal_not_its_own_parent"),
        ]
        permissions = [
            ("disable_principal", "Can disable and enable principals"),
            ("revoke_principal_tokens", "Can revoke tokens"),
            ("connect_client", "Can let OAuth clients act as principals"),
        ]

    def __str__(self) -> str:
        return self.name


class Token(TenantModel):
    """A credential of one principal, stored as a digest.

    `source_systems` are the names under which it may post receipts. During a rotation the old and the new token
    overlap until the old one's `expires_at`. What an OAuth client holds is one token for as long as it is let in: its
    text changes at each refresh.
    """

    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="tokens")
    label = models.CharField(max_length=100, blank=True)
    # Empty where the text was given to us.
    prefix = models.CharField(max_length=8)
    digest = models.BinaryField(max_length=32)
    scopes = ArrayField(models.CharField(max_length=30, choices=Scope))
    source_systems = ArrayField(models.CharField(max_length=50), default=list)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    # The id of the OAuth client that holds it.
    client = models.CharField(max_length=255, blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "digest"], name="principals_token_digest_once"),
        ]
        indexes = [
            # Serves gatehouse_token(), the look-up of every request.
            models.Index(fields=["digest"], name="principals_token_by_digest"),
        ]

    def __str__(self) -> str:
        return f"ght_{self.prefix}…" if self.prefix else self.label


_FORM: Final = re.compile(r"ght_([0-9a-f]{8})_([A-Za-z0-9_-]{43})", re.ASCII)

_FOREIGN_FORM: Final = re.compile(r"(?!ght_)[!-~]{32,200}", re.ASCII)
# Fewer than in any thirty-two hexadecimal digits that were drawn at random, all but once in millions.
_FEWEST_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Secret:
    """A token's text. Shown once; 256 bits of randomness need no slow hash."""

    text: str = field(repr=False)

    @property
    def prefix(self) -> str:
        """What may be shown of it: nothing of a text that is not ours."""
        return self.text[4:12] if self.text.startswith("ght_") else ""

    @property
    def digest(self) -> bytes:
        """SHA-256, 32 bytes."""
        return hashlib.sha256(self.text.encode()).digest()


def new_secret() -> Secret:
    """A fresh token text."""
    return Secret(f"ght_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}")


def read_secret(text: str) -> Secret | None:
    """The secret in a header's value, or None if it has not the form of one."""
    return Secret(text) if _FORM.fullmatch(text) or _FOREIGN_FORM.fullmatch(text) else None


def unpresentable(*words: str) -> Secret:
    """The secret of a row that no request can present: a header's token has no spaces."""
    return Secret(" ".join(words))


def given_secret(text: str) -> Secret | None:
    """The secret in a text that somebody has chosen, or None if it is too short or too plain to be one."""
    return read_secret(text) if len(set(text)) >= _FEWEST_CHARACTERS else None
