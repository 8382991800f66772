from django.apps import AppConfig
from django.contrib.admin import apps as admin
from django.core import checks


class ConsoleConfig(AppConfig):
    name = "apps.console"
    default = True

    def ready(self) -> None:
        from apps.console.health import refuse_unfit_servers  # noqa: PLC0415  # needs loaded models

        checks.register(refuse_unfit_servers, checks.Tags.database)


class ConsoleAdminConfig(admin.AdminConfig):
    """Django's admin with the console as its site."""

    default = False
    default_site = "apps.console.site.ConsoleSite"
