"""What migrations of several apps share: an operation that makes all tables of an app, and the fields that recur."""

from collections.abc import Callable
from typing import Any

from django.db import models
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.operations.models import CreateModel
from django.db.migrations.state import ProjectState
from django.db.models import F
from django.db.models.lookups import Exact, IsNull


class CreateModels(Operation):
    """Create these models, their tables in this order; they may refer to each other in any.

    After each operation Django renders anew what has to do with the model that it was about, and everything here has
    to do with its tenant. Of many that were made one by one most of the time would be that; here it is done once.
    """

    category = OperationCategory.ADDITION

    def __init__(self, *models: CreateModel) -> None:
        self.models = models

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.__dict__.pop("apps", None)  # what is rendered, and would be anew by each of these
        for model in self.models:
            model.state_forwards(app_label, state)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for model in self.models:
            model.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for model in reversed(self.models):
            model.database_backwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        return f"Create models {', '.join(model.name for model in self.models)}"


def both_or_neither(one: str, other: str) -> Exact:
    """The condition that both of two fields are null or none is."""
    return Exact(IsNull(F(one), True), IsNull(F(other), True))  # noqa: FBT003  # Django's


Named = tuple[str, "models.Field[Any, Any]"]
"""A field with its name, as `CreateModel` takes it."""


def id_field() -> Named:
    return "id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def tenant_field() -> Named:
    return reference("tenant", "principals.tenant", "+", editable=False, lasting=True)


def reference(
    name: str,
    to: str,
    related_name: str = "+",
    *,
    on_delete: Callable[..., Any] = models.PROTECT,
    null: bool = False,
    editable: bool = True,
    lasting: bool = False,
) -> Named:
    """A foreign key without an index of its own.

    :param lasting: a trigger keeps what it names from being deleted, so that no row needs to be checked at its commit.
    """
    field = models.ForeignKey(
        to,
        db_index=False,
        db_constraint=not lasting,
        on_delete=on_delete,
        related_name=related_name,
        null=null,
        editable=editable,
    )
    return name, field


def table(name: str, *fields: Named, key: bool = True, tenant: bool = True, **options: Any) -> CreateModel:
    """The operation that creates a model: its number and its tenant first, unless `fields` has its own."""
    first = [id_field()] * key + [tenant_field()] * tenant
    return CreateModel(name, [*first, *fields], options)
