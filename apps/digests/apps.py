from django.apps import AppConfig


class DigestsConfig(AppConfig):
    name = "apps.digests"
