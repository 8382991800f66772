"""The product's settings with one more route; used by nothing but measurements."""

from config.settings import *

ROOT_URLCONF = "apps.bench.urls"
