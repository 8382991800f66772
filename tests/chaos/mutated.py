"""Settings of a product that lacks the foundation which GATEHOUSE_CHAOS_MUTANT names."""

from apps.chaos.settings import *
from apps.chaos.settings import INSTALLED_APPS as _CHAOS

INSTALLED_APPS = [*_CHAOS, "tests.chaos"]
