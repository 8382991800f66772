from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"

    def ready(self) -> None:
        # Apps declare what they offer; importing the rooms fills the registries. That of operations fills itself.
        autodiscover_modules("ticks", "handlers", "hooks", "erasure")
