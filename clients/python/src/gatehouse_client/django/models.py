"""The outbox: tasks that this app has deferred."""

from django.db import models


class DeferredTask(models.Model):
    """A task to queue. It waits, or is queued, or was refused; what was queued is removed after a week."""

    request = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    task_id = models.CharField(max_length=50, blank=True)
    """The hub's, once it has taken the task."""
    refusal = models.TextField(blank=True)
    """Why the hub refused it. Empty it to send the task again."""

    objects: "models.Manager[DeferredTask]" = models.Manager()

    class Meta:
        app_label = "gatehouse"
        indexes = (models.Index(fields=["id"], name="gatehouse_unsent", condition=models.Q(task_id="", refusal="")),)

    def __str__(self) -> str:
        return f"{self.request['task_type']}: {self.task_id or self.refusal or 'not sent yet'}"
