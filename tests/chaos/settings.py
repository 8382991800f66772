"""The product's settings with one more handler."""

from config.settings import *
from config.settings import INSTALLED_APPS as _PRODUCT

INSTALLED_APPS = [*_PRODUCT, "tests.chaos"]
