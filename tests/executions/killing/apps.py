import os

from django.apps import AppConfig


class KillingConfig(AppConfig):
    """Takes out of executions what the environment names."""

    name = "tests.executions.killing"
    label = "executions_mutated"

    def ready(self) -> None:
        from tests.executions.killing.mutants import MUTANTS  # noqa: PLC0415  # needs the models

        MUTANTS[os.environ["GATEHOUSE_EXECUTIONS_MUTANT"]]()
