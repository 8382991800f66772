"""The web application with streams and waits that end at once, for requests that nobody waits for."""

from apps.core import notifications

_answer = notifications.Wait.answer
notifications.STREAM_SECONDS = 0.0  # type: ignore[misc]  # a constant elsewhere
notifications.Wait.answer = lambda wait, _patience: _answer(wait, 0.0)  # type: ignore[method-assign, assignment]

from config.asgi import application  # noqa: E402, F401  # after the change: others may copy it
