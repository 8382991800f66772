"""Settings of a product whose executions lack what GATEHOUSE_EXECUTIONS_MUTANT names."""

from apps.chaos.settings import *
from apps.chaos.settings import INSTALLED_APPS as _CHAOS

INSTALLED_APPS = [*_CHAOS, "tests.executions.killing"]
