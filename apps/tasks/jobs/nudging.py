"""Publishing without waiting: whoever queues a task never talks to the broker itself."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from kombu.exceptions import KombuError, OperationalError

logger = logging.getLogger(__name__)

# More hands than this are not called at once; each works until the queue is dry.
_MOST_AT_ONCE: Final = 16


class Nudger:
    """One thread per process publishes what others leave with it. A nudge that can't be published is dropped."""

    def __init__(self, publish: Callable[[int, str], None]) -> None:
        self._publish = publish
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._left: Counter[tuple[int, str]] = Counter()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def nudge(self, tenant_id: int, queue: str) -> None:
        """Leave a nudge; returns at once."""
        with self._condition:
            self._left[tenant_id, queue] = min(self._left[tenant_id, queue] + 1, _MOST_AT_ONCE)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nudges", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._left)
                left, self._left = self._left, Counter()
            for tenant_id, queue in left.elements():
                try:
                    self._publish(tenant_id, queue)
                except (OperationalError, KombuError, OSError) as exc:
                    logger.warning("a nudge for queue %s was not published: %s", queue, exc)
                    break
                except Exception:  # this thread must outlive a defect; it is logged, and the tick publishes again
                    logger.exception("a nudge for queue %s was not published", queue)
                    break
