"""What operators see of an execution."""

from django.test import Client
from django.urls import reverse

from apps.executions.models import ExecutionStep
from apps.principals.models import Operator
from apps.principals.tenancy import Caller, acting_as_system
from tests.executions.making import advance, begin, example_steps, make_worker
from tests.executions.workers import WorkerServer


def test_the_page_of_an_execution_leads_to_its_plan_tasks_and_receipts(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    advance(execution)
    with acting_as_system("test"):
        operator = Operator.objects.create_superuser("olga", password=None)
        step = ExecutionStep.objects.get(step_id="step-1")
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    page = client.get(reverse("admin:executions_execution_change", args=[execution.pk])).content.decode()
    listing = client.get(reverse("admin:executions_execution_changelist")).content.decode()
    of_step = client.get(reverse("admin:executions_executionstep_change", args=[step.pk]))

    assert execution.plan_id in page
    assert reverse("admin:tasks_task_change", args=[step.task_id]) in page
    assert "/receipts/receipt/" in page
    assert execution.ref in listing
    assert of_step.status_code == 200
