import datetime

import django.utils.timezone
from django.contrib.auth.models import UserManager
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q

from apps.core.rls import kept
from apps.core.tables import CreateModels, id_field, reference, table

# The application's role is bound by row-level security to one tenant, the operator's to those of its memberships,
# and the system role sees all tenants. The server's administrator has made them as logins beside the owner's, see
# docs/deploy.md; else one login makes them here and acts in all, in that which sees nothing where it names none.
ROLES = """
do $$
declare
    wanted text;
begin
    foreach wanted in array array['gatehouse_app', 'gatehouse_operator', 'gatehouse_system'] loop
        if not exists (select from pg_roles where rolname = wanted) then
            begin
                execute format('create role %I nologin', wanted);
                execute format('grant %I to %I with inherit false, set true', wanted, session_user);
            exception when duplicate_object or unique_violation then
                null;  -- another database of this server was set up at the same moment
            end;
        end if;
        execute format('grant usage on schema public to %I', wanted);
        execute format('grant select, insert, update, delete on all tables in schema public to %I', wanted);
        execute format('grant usage, select on all sequences in schema public to %I', wanted);
        execute format('alter default privileges in schema public
                        grant select, insert, update, delete on tables to %I', wanted);
        execute format('alter default privileges in schema public grant usage, select on sequences to %I', wanted);
    end loop;
    if pg_has_role(session_user, 'gatehouse_operator', 'set') then
        execute format('alter role %I in database %I set role = gatehouse_operator', session_user, current_database());
    end if;
end $$;
"""

# Leases, due times and retention compare with this clock; tests move it by the setting. Unlike
# clock_timestamp() it is stable, so an index can serve the comparison.
NOW = """
create function gatehouse_now() returns timestamptz language sql stable parallel safe as $$
    select coalesce(nullif(current_setting('gatehouse.now', true), '')::timestamptz, statement_timestamp())
$$;
"""

# The tenant that the transaction has set; null, which equals nothing, when it has set none.
TENANT = """
create function gatehouse_tenant() returns bigint language sql stable parallel safe as $$
    select nullif(current_setting('gatehouse.tenant', true), '')::bigint
$$;
"""

# The tenants whose rows an operator's request may see; null, which matches nothing, when none are set.
TENANTS = """
create function gatehouse_tenants() returns bigint[] language sql stable parallel safe as $$
    select string_to_array(nullif(current_setting('gatehouse.tenants', true), ''), ',')::bigint[]
$$;
"""

# Runs as the owner: a token is looked up before its tenant is known. Answers one row for one digest.
TOKEN_LOOKUP = """
create function gatehouse_token(wanted bytea)
returns table (token_id bigint, tenant_id bigint, tenant_slug text, principal_id bigint, principal_name text,
               kind text, scopes text[], source_systems text[], expires_at timestamptz, revoked_at timestamptz,
               disabled_at timestamptz, last_used_at timestamptz)
language sql stable security definer set search_path = public, pg_temp as $$
    select k.id, k.tenant_id, t.slug, p.id, p.name, p.kind, k.scopes::text[], k.source_systems::text[],
           k.expires_at, k.revoked_at, p.disabled_at, k.last_used_at
    from principals_token k
    join principals_principal p on p.id = k.principal_id
    join principals_tenant t on t.id = k.tenant_id
    where k.digest = wanted
$$;
revoke execute on function gatehouse_token(bytea) from public;
grant execute on function gatehouse_token(bytea) to gatehouse_app, gatehouse_operator, gatehouse_system;
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        migrations.RunSQL(ROLES, migrations.RunSQL.noop),
        migrations.RunSQL(NOW, "drop function gatehouse_now()"),
        migrations.RunSQL(TENANT, "drop function gatehouse_tenant()"),
        migrations.RunSQL(TENANTS, "drop function gatehouse_tenants()"),
        CreateModels(
            table(
                "Tenant",
                ("slug", models.SlugField(unique=True)),
                ("name", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField()),
                (
                    "keep_receipts",
                    models.DurationField(
                        null=True,
                    ),
                ),
                tenant=False,
                constraints=[
                    models.CheckConstraint(
                        condition=Q(keep_receipts=None) | Q(keep_receipts__gt=datetime.timedelta(0)),
                        name="principals_tenant_keeps_receipts_a_while",
                    )
                ],
            ),
            migrations.CreateModel(
                name="Operator",
                fields=[
                    id_field(),
                    ("password", models.CharField(max_length=128)),
                    ("last_login", models.DateTimeField(blank=True, null=True)),
                    ("is_superuser", models.BooleanField(default=False)),
                    (
                        "username",
                        models.CharField(max_length=150, unique=True, validators=[UnicodeUsernameValidator()]),
                    ),
                    ("first_name", models.CharField(max_length=150, blank=True)),
                    ("last_name", models.CharField(max_length=150, blank=True)),
                    ("email", models.EmailField(max_length=254, blank=True)),
                    ("is_staff", models.BooleanField(default=False)),
                    ("is_active", models.BooleanField(default=True)),
                    ("date_joined", models.DateTimeField(default=django.utils.timezone.now)),
                    (
                        "groups",
                        models.ManyToManyField(
                            blank=True, related_name="user_set", related_query_name="user", to="auth.group"
                        ),
                    ),
                    (
                        "user_permissions",
                        models.ManyToManyField(
                            blank=True, related_name="user_set", related_query_name="user", to="auth.permission"
                        ),
                    ),
                ],
                options={
                    "verbose_name": "operator",
                    "verbose_name_plural": "operators",
                    "abstract": False,
                },
                managers=[("objects", UserManager())],
            ),
            table(
                "Principal",
                ("name", models.CharField(max_length=50)),
                ("kind", models.CharField(max_length=10)),
                ("created_at", models.DateTimeField()),
                ("disabled_at", models.DateTimeField(null=True)),
                reference("parent", "principals.principal", "children", null=True),
                constraints=[
                    models.UniqueConstraint(name="principals_principal_name_once", fields=["tenant", "name"]),
                    models.CheckConstraint(
                        name="principals_principal_not_its_own_parent", condition=~Q(parent=F("id"))
                    ),
                ],
                permissions=[
                    ("disable_principal", "Can disable and enable principals"),
                    ("revoke_principal_tokens", "Can revoke tokens"),
                    ("connect_client", "Can let OAuth clients act as principals"),
                ],
            ),
            table(
                "Membership",
                ("role", models.CharField(max_length=10, default="viewer")),
                (
                    "operator",
                    models.ForeignKey(related_name="memberships", on_delete=models.CASCADE, to="principals.operator"),
                ),
                (
                    "tenant",
                    models.ForeignKey(related_name="memberships", on_delete=models.CASCADE, to="principals.tenant"),
                ),
                tenant=False,
                constraints=[
                    models.UniqueConstraint(name="principals_membership_once", fields=["operator", "tenant"]),
                ],
            ),
            table(
                "Token",
                ("label", models.CharField(max_length=100, blank=True)),
                ("prefix", models.CharField(max_length=8)),
                ("digest", models.BinaryField(max_length=32)),
                ("scopes", ArrayField(models.CharField(max_length=30))),
                ("source_systems", ArrayField(models.CharField(max_length=50), default=list)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("revoked_at", models.DateTimeField(null=True)),
                ("last_used_at", models.DateTimeField(null=True)),
                (
                    "principal",
                    models.ForeignKey(related_name="tokens", on_delete=models.PROTECT, to="principals.principal"),
                ),
                ("client", models.CharField(max_length=255, blank=True, default="")),
                constraints=[
                    models.UniqueConstraint(name="principals_token_digest_once", fields=["tenant", "digest"]),
                ],
                indexes=[
                    models.Index(name="principals_token_by_digest", fields=["digest"]),
                ],
            ),
        ),
        migrations.RunSQL(TOKEN_LOOKUP, "drop function gatehouse_token(bytea)"),
        kept("principals_tenant"),
        kept("principals_principal"),
    ]
