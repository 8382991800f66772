import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

from apps.core.rls import kept, protect
from apps.core.tables import CreateModels, id_field, reference, tenant_field

# The application's role is bound by row-level security to one tenant, the operator's to those of its memberships,
# the system role sees all tenants, and the login role owns the tables. They are made here unless the server's
# administrator has made them.
ROLES = """
do $$
declare
    wanted text;
begin
    foreach wanted in array array['gatehouse_app', 'gatehouse_operator', 'gatehouse_system'] loop
        if not exists (select from pg_roles where rolname = wanted) then
            begin
                execute format('create role %I nologin', wanted);
            exception when duplicate_object or unique_violation then
                null;  -- another database of this server was set up at the same moment
            end;
        end if;
        if not pg_has_role(session_user, wanted, 'set') then
            execute format('grant %I to %I with inherit false, set true', wanted, session_user);
        end if;
        execute format('grant usage on schema public to %I', wanted);
        execute format('grant select, insert, update, delete on all tables in schema public to %I', wanted);
        execute format('grant usage, select on all sequences in schema public to %I', wanted);
        execute format('alter default privileges in schema public
                        grant select, insert, update, delete on tables to %I', wanted);
        execute format('alter default privileges in schema public grant usage, select on sequences to %I', wanted);
    end loop;
    execute format('alter role %I in database %I set role = gatehouse_app', session_user, current_database());
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
grant execute on function gatehouse_token(bytea) to gatehouse_app, gatehouse_system;
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
            migrations.CreateModel(
                name="Tenant",
                fields=[
                    id_field(),
                    ("slug", models.SlugField(unique=True)),
                    ("name", models.CharField(max_length=200)),
                    (
                        "creates_recipients",
                        models.BooleanField(
                            default=False,
                            help_text="A receipt to an unknown recipient creates the principal instead of being refused.",
                        ),
                    ),
                    ("created_at", models.DateTimeField()),
                ],
            ),
            migrations.CreateModel(
                name="Operator",
                fields=[
                    id_field(),
                    ("password", models.CharField(max_length=128, verbose_name="password")),
                    ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                    (
                        "is_superuser",
                        models.BooleanField(
                            default=False,
                            help_text="Designates that this user has all permissions without explicitly assigning them.",
                            verbose_name="superuser status",
                        ),
                    ),
                    (
                        "username",
                        models.CharField(
                            error_messages={"unique": "A user with that username already exists."},
                            help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                            max_length=150,
                            unique=True,
                            validators=[django.contrib.auth.validators.UnicodeUsernameValidator()],
                            verbose_name="username",
                        ),
                    ),
                    ("first_name", models.CharField(blank=True, max_length=150, verbose_name="first name")),
                    ("last_name", models.CharField(blank=True, max_length=150, verbose_name="last name")),
                    ("email", models.EmailField(blank=True, max_length=254, verbose_name="email address")),
                    (
                        "is_staff",
                        models.BooleanField(
                            default=False,
                            help_text="Designates whether the user can log into this admin site.",
                            verbose_name="staff status",
                        ),
                    ),
                    (
                        "is_active",
                        models.BooleanField(
                            default=True,
                            help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
                            verbose_name="active",
                        ),
                    ),
                    (
                        "date_joined",
                        models.DateTimeField(default=django.utils.timezone.now, verbose_name="date joined"),
                    ),
                    (
                        "groups",
                        models.ManyToManyField(
                            blank=True,
                            help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                            related_name="user_set",
                            related_query_name="user",
                            to="auth.group",
                            verbose_name="groups",
                        ),
                    ),
                    (
                        "user_permissions",
                        models.ManyToManyField(
                            blank=True,
                            help_text="Specific permissions for this user.",
                            related_name="user_set",
                            related_query_name="user",
                            to="auth.permission",
                            verbose_name="user permissions",
                        ),
                    ),
                    (
                        "tenants",
                        models.ManyToManyField(
                            related_name="operators", through="principals.Membership", to="principals.tenant"
                        ),
                    ),
                ],
                options={
                    "verbose_name": "user",
                    "verbose_name_plural": "users",
                    "abstract": False,
                },
                managers=[
                    ("objects", django.contrib.auth.models.UserManager()),
                ],
            ),
            migrations.CreateModel(
                name="Principal",
                fields=[
                    id_field(),
                    ("name", models.CharField(max_length=50)),
                    (
                        "kind",
                        models.CharField(
                            choices=[
                                ("ai", "Ai"),
                                ("service", "Service"),
                                ("worker", "Worker"),
                                ("delegate", "Delegate"),
                            ],
                            max_length=10,
                        ),
                    ),
                    ("created_at", models.DateTimeField()),
                    ("disabled_at", models.DateTimeField(null=True)),
                    reference("parent", "principals.principal", "children", null=True),
                    tenant_field(),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "name"), name="principals_principal_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(("kind__in", ["ai", "service", "worker", "delegate"])),
                            name="principals_principal_kind_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("parent", models.F("id")), _negated=True),
                            name="principals_principal_not_its_own_parent",
                        ),
                    ],
                    "permissions": [
                        ("disable_principal", "Can disable and enable principals"),
                        ("rename_principal", "Can rename principals"),
                        ("revoke_principal_tokens", "Can revoke tokens"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Membership",
                fields=[
                    id_field(),
                    (
                        "role",
                        models.CharField(
                            choices=[("viewer", "Viewer"), ("operator", "Operator"), ("owner", "Owner")],
                            default="viewer",
                            max_length=10,
                        ),
                    ),
                    (
                        "operator",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="memberships",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="memberships",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("operator", "tenant"), name="principals_membership_once"),
                        models.CheckConstraint(
                            condition=models.Q(("role__in", ["viewer", "operator", "owner"])),
                            name="principals_membership_role_known",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Token",
                fields=[
                    id_field(),
                    ("label", models.CharField(blank=True, max_length=100)),
                    ("prefix", models.CharField(max_length=8)),
                    ("digest", models.BinaryField(max_length=32)),
                    (
                        "scopes",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(
                                choices=[
                                    ("receipts:write", "Receipts Write"),
                                    ("inbox", "Inbox"),
                                    ("tasks:queue", "Tasks Queue"),
                                    ("tasks:work", "Tasks Work"),
                                    ("workers:register", "Workers Register"),
                                    ("plans", "Plans"),
                                    ("memory", "Memory"),
                                    ("admin", "Admin"),
                                ],
                                max_length=30,
                            ),
                            size=None,
                        ),
                    ),
                    (
                        "source_systems",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=50), default=list, size=None
                        ),
                    ),
                    ("created_at", models.DateTimeField()),
                    ("expires_at", models.DateTimeField(null=True)),
                    ("revoked_at", models.DateTimeField(null=True)),
                    ("last_used_at", models.DateTimeField(null=True)),
                    (
                        "principal",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="tokens",
                            to="principals.principal",
                        ),
                    ),
                    tenant_field(),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "digest"), name="principals_token_digest_once")
                    ],
                    "indexes": [models.Index(fields=["digest"], name="principals_token_by_digest")],
                },
            ),
        ),
        migrations.RunSQL(TOKEN_LOOKUP, "drop function gatehouse_token(bytea)"),
        protect("principals_tenant", column="id"),
        protect("principals_principal"),
        protect("principals_token"),
        kept("principals_tenant"),
        kept("principals_principal"),
    ]
