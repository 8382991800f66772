"""What the import contracts can't see: who writes, what is documented, where foreign keys point, what is walled."""

import ast
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import models
from django.db.migrations.loader import MigrationLoader

from apps.principals.models import Membership, Tenant, TenantModel

ROOT: Final = Path(settings.BASE_DIR)
CONTRACTS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS: Final = [
    {name.strip() for name in layer.split("|")}
    for contract in CONTRACTS
    if contract.get("containers") == ["apps"]
    for layer in reversed(contract["layers"])
]
LEVEL_OF: Final = {name: level for level, names in enumerate(LAYERS) for name in names}
OUR_MODELS: Final = [model for model in apps.get_models() if model.__module__.startswith("apps.")]

WRITES: Final = {
    "acreate", "aget_or_create", "asave", "aupdate", "aupdate_or_create", "abulk_create", "abulk_update", "adelete",
    "bulk_create", "bulk_update", "create", "get_or_create", "save", "update_or_create",
}  # fmt: skip
# These are words of other things too (dict.update, storage.delete): they count where a manager or queryset is called.
WRITES_OF_QUERYSETS: Final = {"update", "delete"}
# What writes tables that are not the product's own: beat's schedules.
WRITES_ELSEWHERE: Final = {
    "apps/core/management/commands/sync_schedules.py",
}


def _sources() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "apps").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path


def _may_write(name: str) -> bool:
    rooms = set(Path(name).parts[2:3])
    return bool(rooms & {"services.py", "services", "migrations"}) or name in WRITES_ELSEWHERE


def _speaks_of_rows(node: ast.expr) -> bool:
    """Whether an expression goes through a manager: `Model.objects.filter(…)`, `row.children.all()`."""
    return any(
        isinstance(part, ast.Attribute) and part.attr in {"objects", "_default_manager"} for part in ast.walk(node)
    )


def _writes(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            verb, subject = node.func.attr, node.func.value
            storage = isinstance(subject, ast.Name) and subject.id == "storage"
            rows = _speaks_of_rows(subject)
            if (verb in WRITES and not storage) or (verb in WRITES_OF_QUERYSETS and rows):
                yield node


def test_only_services_write() -> None:
    culprits = [
        f"{name}:{call.lineno}"
        for name, path in _sources()
        if not _may_write(name)
        for call in _writes(ast.parse(path.read_text()))
    ]
    assert culprits == []


# What an app is to others. Its statements and tools are its own.
PUBLIC_ROOMS: Final = {
    "erasure", "errors", "handlers", "hooks", "limits", "models", "notifications", "scopes", "selectors", "senders", "services",
    "shapes", "signals", "soundness", "states", "tenancy", "vectors",
}  # fmt: skip


def _imported(name: str, tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """The modules of the product that a file imports, as their parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = [*node.module.split("."), alias.name]
                path = ROOT.joinpath(*whole)
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield node.lineno, whole if is_module else whole[:-1]


def test_an_app_knows_of_those_below_it_their_public_rooms() -> None:
    culprits = [
        f"{name}:{line} {'.'.join(parts)}"
        for name, path in _sources()
        for line, parts in _imported(name, ast.parse(path.read_text()))
        if parts[0] == "apps" and len(parts) > 2 and parts[1] not in {path.relative_to(ROOT).parts[1], "core"}
        if parts[2] not in PUBLIC_ROOMS or LEVEL_OF[parts[1]] >= LEVEL_OF[path.relative_to(ROOT).parts[1]]
    ]
    assert culprits == []


@pytest.mark.parametrize("model", OUR_MODELS, ids=lambda model: model._meta.label)
def test_foreign_keys_point_down(model: type[models.Model]) -> None:
    level = LEVEL_OF[model._meta.app_label]
    for field in model._meta.get_fields():
        target = field.related_model
        if not getattr(field, "concrete", False) or not isinstance(target, type):
            continue
        if target.__module__.startswith("apps.") and target._meta.app_label != model._meta.app_label:
            assert LEVEL_OF[target._meta.app_label] < level, f"{model._meta.label}.{field.name}"


@pytest.mark.parametrize("model", OUR_MODELS, ids=lambda model: model._meta.label)
def test_every_row_is_of_a_tenant_and_its_unique_keys_begin_with_it(model: type[models.Model]) -> None:
    names = {field.name for field in model._meta.get_fields()}
    if "tenant" not in names or model is Membership:
        return
    assert issubclass(model, TenantModel)
    for constraint in model._meta.constraints:
        if isinstance(constraint, models.UniqueConstraint):
            assert constraint.fields[:1] == ("tenant",), constraint.name


def test_what_is_not_of_a_tenant_is_known() -> None:
    elsewhere = {model for model in OUR_MODELS if not issubclass(model, TenantModel)}
    assert {model._meta.label for model in elsewhere} == {
        "principals.Membership",
        "principals.Operator",
        Tenant._meta.label,
    }


# What processes of the last release would fail at, and what keeps them from a table for as long as it is long. A later
# release removes what none asks for any more, by a migration that is named after that: contract.
_BREAKING: Final = re.compile(
    r"drop (table|column)|rename|alter column \S+ (type|set not null|drop default)|add column (?!.* default).* not null"
)
_LOCKING: Final = re.compile(
    r"create (unique )?index (?!concurrently)\S+ on (?P<table>\S+)"
    r"|alter table (?P<altered>\S+) add constraint (?!.*(not valid|using index))"
)


def _unsafe(name: str, script: str) -> list[str]:
    """The statements of a migration that no release may bring while another one works (docs/upgrade.md)."""
    statements = [one for one in re.sub(r"--.*", "", script).lower().split(";") if one.strip()]
    made = set(re.findall(r"create table (\S+)", script.lower()))
    return [
        one.strip()
        for one in statements
        if (_BREAKING.search(one) and not name.endswith("contract"))
        or ((found := _LOCKING.search(one)) and not made & {found["table"], found["altered"]})
    ]


def test_migrations_let_the_last_release_work(db: None) -> None:
    for app, name in sorted(MigrationLoader(None, ignore_no_migrations=True).disk_migrations):
        if app in LEVEL_OF and name != "0001_initial":
            script = io.StringIO()
            call_command("sqlmigrate", app, name, stdout=script)
            assert _unsafe(name, script.getvalue()) == [], f"{app}.{name}"


def test_unsafe_statements_of_a_migration_are_known() -> None:
    safe = """alter table t add column c text null; alter table t add column c int default 0 not null;
        create index concurrently i on t (c); create table u (c text not null); create index i on u (c);
        alter table t add constraint k check (c > 0) not valid"""
    unsafe = """alter table t add column c int not null; alter table t alter column c drop default; drop table t;
        alter table t alter column c type bigint using c::bigint; alter table t alter column c set not null;
        alter table t drop column c cascade; alter table t rename column c to d; create index i on t (c);
        create unique index i on t (c); alter table t add constraint k check (c > 0)"""
    assert _unsafe("0002_more", safe) == []
    assert len(_unsafe("0002_more", unsafe)) == unsafe.count(";") + 1
