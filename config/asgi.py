"""The ASGI application: REST, MCP, streams and the console."""

import gc
import os

import django
from django.urls import get_resolver

# To load makes many objects, a request some thousands, and both next to no garbage that only a search finds.
gc.set_threshold(50_000, 20, 20)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup(set_prefix=False)

from config.handlers import Application, PageHandler  # noqa: E402  # needs the apps to be ready

application = Application(PageHandler())
get_resolver().url_patterns  # noqa: B018  # loaded now, with all views, and not by the first request
# What is loaded by now stays for good. To go over it again and again in search of garbage would stop every request for
# some tenths of a second each time.
gc.collect()
gc.freeze()
