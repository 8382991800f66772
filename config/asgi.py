"""The ASGI application: REST, MCP, streams and the console."""

import gc
import os

from django.core.asgi import get_asgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
_application = get_asgi_application()

from config.handlers import Application  # noqa: E402  # needs the apps to be ready

application = Application(_application)
get_resolver().url_patterns  # noqa: B018  # loaded now, with all views, and not by the first request
# What is loaded by now stays for good. To go over it again and again in search of garbage would stop every request for
# some tenths of a second each time.
gc.collect()
gc.freeze()
