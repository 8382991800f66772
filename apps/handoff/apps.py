from django.apps import AppConfig


class HandoffConfig(AppConfig):
    name = "apps.handoff"
    verbose_name = "Handoff"
