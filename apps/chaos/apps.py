from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "apps.chaos"
