"""Handoffs at the console: by project, read-only."""

from django.test import Client
from django.urls import reverse

from apps.handoff import services
from apps.handoff.items import Kind, Priority
from apps.handoff.models import Handoff
from apps.handoff.services import Note
from apps.principals.models import Operator
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0


def test_an_operator_sees_the_handoffs_of_a_project(kee: Caller) -> None:
    with acting_as(kee):
        for project in ("web-1", "api-1"):
            note = Note(
                from_session=f"session-of-{project}",
                kind=Kind.LEARNING,
                priority=Priority.LOW,
                body="<b>bold</b>",
                project=project,
            )
            services.leave(author=kee, recipient_id=kee.principal_id, note=note, now=T0)
    console = Client()
    console.force_login(Operator.objects.create_superuser("root"))
    page = console.get(reverse("admin:handoff_handoff_changelist"), {"project": "web-1"}).content.decode()
    assert "session-of-web-1" in page
    assert "session-of-api-1" not in page
    waiting = console.get(reverse("admin:handoff_handoff_changelist"), {"inherited_at__isempty": "0"}).content.decode()
    assert "session-of-web-1" not in waiting
    with acting_as_system("test"):
        row = Handoff.objects.get(project="web-1")
    shown = console.get(reverse("admin:handoff_handoff_change", args=[row.pk])).content.decode()
    assert row.receipt_id in shown
    assert "<b>bold</b>" not in shown
