"""The product's settings with one more handler; used by nothing but chaos."""

from config.settings import *
from config.settings import INSTALLED_APPS as _PRODUCT

INSTALLED_APPS = [*_PRODUCT, "apps.chaos.executed"]
