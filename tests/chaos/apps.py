import os

from django.apps import AppConfig


class MutatedConfig(AppConfig):
    """Takes out of the product what the environment names."""

    name = "tests.chaos"
    label = "chaos_mutated"

    def ready(self) -> None:
        from tests.chaos.mutants import MUTANTS  # noqa: PLC0415  # needs the models

        MUTANTS[os.environ["GATEHOUSE_CHAOS_MUTANT"]]()
