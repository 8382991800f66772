"""The web application with streams that end at once, for requests that nobody waits for."""

from apps.core import notifications

notifications.STREAM_SECONDS = 0.0  # type: ignore[misc]  # a constant elsewhere

from config.asgi import application  # noqa: E402, F401  # after the change: others may copy it
