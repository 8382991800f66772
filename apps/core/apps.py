from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"

    def ready(self) -> None:
        # Apps declare what they offer; importing the rooms fills the registries.
        autodiscover_modules("tools", "ticks", "handlers", "hooks", "erasure")
