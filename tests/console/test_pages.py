"""Every list and every thing in it can be looked at."""

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import call_command
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from pytest_django.plugin import DjangoDbBlocker

from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt
from tests.console.world import fill

SHOWN = sorted((model for model in apps.get_models() if model in admin.site._registry), key=lambda m: m._meta.label)


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """One tenant in which everything has happened, for all tests here: they only look."""
    with django_db_blocker.unblock():
        fill()
        yield
        call_command("flush", interactive=False, verbosity=0)


@pytest.fixture
def world(filled: None, db: None) -> None:
    """The filled tenant; what a test adds is rolled back."""


@pytest.mark.parametrize("model", SHOWN, ids=lambda model: model._meta.label)
def test_a_list_and_what_it_holds_can_be_looked_at(world: None, console: Client, model: type[Model]) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    assert console.get(reverse(f"{name}_changelist")).status_code == 200
    assert console.get(reverse(f"{name}_changelist"), {"q": "a"}).status_code == 200
    with acting_as_system("test"):
        first = model._default_manager.order_by("pk").first()
    if first is not None:
        for page in ("change", "history"):
            assert console.get(reverse(f"{name}_{page}", args=[first.pk])).status_code == 200


def test_stored_text_is_never_markup(world: None, console: Client) -> None:
    page = console.get(reverse("admin:memory_memory_changelist")).content.decode()
    assert "&lt;b&gt;slow&lt;/b&gt;" in page
    assert "<b>slow</b>" not in page


def test_a_long_list_is_filtered_by_typing_and_counted_only_so_far(
    world: None, console: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = reverse("admin:receipts_receipt_changelist")
    with acting_as_system("test"):
        all_of_them = Receipt.objects.count()
        planned = Receipt.objects.filter(source_system="delegate").count()
    assert 0 < planned < all_of_them

    found = console.get(address, {"source_system": "delegate"}).context["cl"]
    assert (found.result_count, {row.source_system for row in found.result_list}) == (planned, {"delegate"})
    assert 'name="source_system"' in console.get(address).content.decode()
    assert console.get(address, {"q": found.result_list[0].receipt_id}).context["cl"].result_count == 1
    monkeypatch.setattr("apps.core.admin._COUNTED", 2)
    assert console.get(address).context["cl"].result_count == 2


def test_tasks_are_filtered_by_the_names_of_their_queue_and_type(world: None, console: Client) -> None:
    address = reverse("admin:tasks_task_changelist")
    assert console.get(address, {"queue__name": "default"}).context["cl"].result_count > 0
    assert console.get(address, {"task_type__name": "no_such_type"}).context["cl"].result_count == 0
