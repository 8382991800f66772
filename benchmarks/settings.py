"""The product's settings with one more route."""

from config.settings import *

ROOT_URLCONF = "benchmarks.urls"
