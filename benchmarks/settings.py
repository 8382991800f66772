"""The product's settings with one more route, and the handler of the fault tests."""

from tests.chaos.settings import *

ROOT_URLCONF = "benchmarks.urls"
