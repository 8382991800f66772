from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from oauth2_provider.models import Application, RefreshToken
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from apps.core.admin import OperatorAdmin, ReasonForm, ago, link_to, linked, list_verb, verb
from apps.principals import services
from apps.principals.models import Membership, Operator, Principal, Tenant, Token
from apps.principals.scopes import Kind
from apps.principals.tenancy import acting_as_system

_TOKENS_SHOWN: Final = 50


class SuperusersOnly:
    """Whoever edits accounts and permissions can give itself any."""

    def has_module_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)

    has_view_permission = has_add_permission = has_module_permission
    has_change_permission = has_delete_permission = has_module_permission


def _is_superuser(request: HttpRequest) -> bool:
    return isinstance(request.user, Operator) and request.user.is_superuser


# The theme's class last: it has no fields to add somebody by, Django's has.
@admin.register(Group)
class GroupAdmin(SuperusersOnly, DjangoGroupAdmin, ModelAdmin):
    """Groups of permissions for operators."""


@admin.register(Operator)
class OperatorAccountAdmin(SuperusersOnly, DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]  # not subscriptable at run time
    """People with a console: the one thing that is edited here, because people are."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Tenant)
class TenantAdmin(OperatorAdmin):
    list_display = ["slug", "name", "created_at"]
    search_fields = ["slug", "name"]


@admin.register(Membership)
class MembershipAdmin(SuperusersOnly, ModelAdmin):
    """Which operator sees which tenant."""

    list_display = ["operator", "tenant", "role"]
    list_select_related = ["operator", "tenant"]


def _valid(tokens: QuerySet[Token]) -> QuerySet[Token]:
    return tokens.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)


class AddPrincipalForm(ReasonForm):
    tenant = forms.ModelChoiceField(Tenant.objects.all(), widget=UnfoldAdminSelectWidget)
    name = forms.CharField(max_length=50, widget=UnfoldAdminTextInputWidget)
    kind = forms.ChoiceField(choices=Kind.choices, widget=UnfoldAdminSelectWidget)


@admin.register(Principal)
class PrincipalAdmin(OperatorAdmin):
    actions_list = ["add_principal"]
    actions_detail = ["disable", "enable", "revoke_tokens"]
    list_display = ["name", "kind", "tenant", linked("parent", "Reports to"), "created_at", "disabled_at"]
    list_filter = ["kind", "tenant"]
    list_select_related = ["tenant", "parent"]
    search_fields = ["name"]
    readonly_fields = ["tokens"]

    @list_verb(
        "Add a principal",
        explanation="An agent, service or worker that can act here. A host is let in as it by OAuth.",
        permission="principals.add_principal",
        form=AddPrincipalForm,
        submit="Add",
    )
    def add_principal(self, request: HttpRequest, given: Mapping[str, Any]) -> tuple[str, str]:
        tenant, kind = given["tenant"], Kind(given["kind"])
        added = services.add_principal(tenant_id=tenant.pk, name=given["name"], kind=kind, now=timezone.now())
        self.log_addition(request, added, f"Add a principal: {given['reason']}")
        return reverse("admin:principals_principal_changelist"), f"{added} is a principal of {added.tenant}."

    @admin.display(description="Tokens")
    def tokens(self, principal: Principal) -> str:
        """The valid ones, the last used first, each with the dialog that revokes it."""
        now = timezone.now()
        return (
            format_html_join(
                "",
                '<div>{} {}, {} <a href="#" class="text-primary-600" hx-get="{}" hx-target="#modal-content"'
                ' hx-select="#dialog" x-on:htmx:after-on-load="openModal = true">Revoke this one</a></div>',
                (
                    (
                        link_to(token),
                        f"{token.label} {', '.join(token.scopes)}",
                        "never used"
                        if token.last_used_at is None
                        else format_html("used {}", ago(token.last_used_at, now)),
                        reverse("admin:principals_token_revoke", args=[token.pk]),
                    )
                    for token in _valid(principal.tokens.all()).order_by(F("last_used_at").desc(nulls_last=True))[
                        :_TOKENS_SHOWN
                    ]
                ),
            )
            or "-"
        )

    @verb(
        "Disable",
        explanation="Its tokens are refused from now on, and so are receipts to it; its inbox stays.",
        permission="principals.disable_principal",
        possible=lambda principal: principal.disabled_at is None and principal.name not in services.BUILT_IN,
    )
    def disable(self, principal: Principal, given: Mapping[str, Any]) -> str:
        services.disable_principal(principal_id=principal.pk, now=timezone.now())
        return f"{principal} can't act any more."

    @verb(
        "Enable",
        explanation="Let it act again, with those of its tokens that are still valid.",
        permission="principals.disable_principal",
        possible=lambda principal: principal.disabled_at is not None,
    )
    def enable(self, principal: Principal, given: Mapping[str, Any]) -> str:
        services.enable_principal(principal_id=principal.pk)
        return f"{principal} can act."

    @verb(
        "Revoke all tokens",
        explanation="Every token of this principal ends at once.",
        permission="principals.revoke_principal_tokens",
        possible=lambda principal: _valid(principal.tokens.all()).exists(),
    )
    def revoke_tokens(self, principal: Principal, given: Mapping[str, Any]) -> str:
        revoked = services.revoke_tokens(principal_id=principal.pk, now=timezone.now())
        return f"{revoked} tokens of {principal} have ended."


@admin.register(Token)
class TokenAdmin(OperatorAdmin):
    actions_detail = ["revoke"]
    list_display = [
        "__str__", linked("principal"), "label", "scopes", "created_at", "expires_at", "revoked_at",
        "last_used_at",
    ]  # fmt: skip
    list_select_related = ["principal"]
    list_filter = ["tenant"]
    search_fields = ["prefix__exact", "label", "principal__name__exact"]
    search_help_text = "ght_ and its eight characters, a label, or a principal's name. Never the whole token."
    exclude = ["digest"]

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        return super().get_search_results(request, queryset, search_term.removeprefix("ght_"))

    @verb(
        "Revoke",
        explanation="This token ends at once.",
        permission="principals.revoke_principal_tokens",
        possible=lambda token: _valid(Token.objects.filter(pk=token.pk)).exists(),
    )
    def revoke(self, token: Token, given: Mapping[str, Any]) -> str:
        services.revoke_token(token_id=token.pk, now=timezone.now())
        return f"{token} has ended."


@admin.register(Application)
class ClientAdmin(OperatorAdmin):
    """Hosts and services that may ask for tokens by OAuth, in the whole deployment."""

    actions_detail = ["remove"]
    list_display = ["__str__", "acts_as", "let_in_by", "last_used", "registration_source", "client_id", "created"]
    list_filter = ["registration_source"]
    search_fields = ["name", "client_id"]
    fields = ["name", "client_id", "registration_source", "authorization_grant_type", "redirect_uris", "created"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Application]:
        held = Token.objects.filter(client=OuterRef("client_id"))
        by = RefreshToken.objects.filter(application=OuterRef("pk"), revoked=None).order_by("user__username")
        found: QuerySet[Application] = (
            super()
            .get_queryset(request)
            .annotate(
                held_by=ArraySubquery(
                    held.filter(revoked_at=None).order_by("principal__name").values("principal__name")
                ),
                granted_by=ArraySubquery(by.values("user__username")),
                used_at=Subquery(held.order_by(F("last_used_at").desc(nulls_last=True)).values("last_used_at")[:1]),
            )
        )
        return found if _is_superuser(request) else found.none()

    @admin.display(description="Acts as")
    def acts_as(self, client: Any) -> str:
        return ", ".join(dict.fromkeys(client.held_by)) or "-"

    @admin.display(description="Let in by")
    def let_in_by(self, client: Any) -> str:
        return ", ".join(dict.fromkeys(client.granted_by)) or "-"

    @admin.display(description="Last used", ordering="used_at")
    def last_used(self, client: Any) -> Any:
        return client.used_at

    @verb(
        "Remove",
        explanation="Every token that this client holds ends at once, in all tenants.",
        permission="oauth2_provider.delete_application",
    )
    def remove(self, client: Application, given: Mapping[str, Any]) -> str:
        with acting_as_system("console: an OAuth client is removed"):
            services.end_client(client=client, now=timezone.now())
        return f"{client} is removed."
