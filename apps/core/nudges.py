"""Publishing without waiting: whoever has something for a worker process never talks to the broker itself."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, ParamSpec

from kombu.exceptions import KombuError, OperationalError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
_MOST_LEFT: Final = 10_000


class Nudger(Generic[P]):
    """One thread per process publishes what others leave with it. A nudge that can't be published is dropped.

    The arguments of a nudge are positional and hashable.
    """

    def __init__(self, publish: Callable[P, None], *, most_at_once: int = 1) -> None:
        """:param most_at_once: what is left this often before it is published is left no more."""
        self._publish: Callable[..., None] = publish
        self._most_at_once = most_at_once
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._left: Counter[tuple[object, ...]] = Counter()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def nudge(self, *args: P.args, **_: P.kwargs) -> None:
        """Leave a nudge; returns at once."""
        with self._condition:
            if args in self._left or len(self._left) < _MOST_LEFT:
                self._left[args] = min(self._left[args] + 1, self._most_at_once)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nudges", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._left)
                left, self._left = self._left, Counter()
            for args in left.elements():
                try:
                    self._publish(*args)
                except (OperationalError, KombuError, OSError) as exc:
                    logger.warning("a nudge for %s was not published: %s", args, exc)
                    break
                except Exception:  # this thread must outlive a defect; it is logged, and the tick publishes again
                    logger.exception("a nudge for %s was not published", args)
                    break
