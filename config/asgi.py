"""The ASGI application: REST, MCP, streams and the console."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
_application = get_asgi_application()

from config.handlers import Application  # noqa: E402  # needs the apps to be ready

application = Application(_application)
