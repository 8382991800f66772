"""Nudges: whoever leaves one never waits for the broker."""

import threading

from apps.core.nudges import Nudger


def test_whoever_nudges_does_not_wait_for_a_broker_that_does_not_answer() -> None:
    entered, answers, published = threading.Event(), threading.Event(), threading.Semaphore(0)
    seen: list[tuple[int, str]] = []

    def publish(tenant_id: int, queue: str) -> None:
        entered.set()
        assert answers.wait(20)
        seen.append((tenant_id, queue))
        published.release()

    nudger = Nudger(publish, most_at_once=2)
    nudger.nudge(1, "a")
    assert entered.wait(20)
    for _ in range(5):
        nudger.nudge(1, "b")
    assert not seen
    answers.set()

    for _ in range(3):
        assert published.acquire(timeout=20)
    assert seen == [(1, "a"), (1, "b"), (1, "b")]


def test_a_nudge_that_can_not_be_published_costs_the_next_one_nothing() -> None:
    published = threading.Event()

    def publish(number: int) -> None:
        if number == 1:
            raise ConnectionRefusedError
        published.set()

    tried = Nudger(publish)
    tried.nudge(1)
    for _ in range(400):
        tried.nudge(2)
        if published.wait(0.05):
            break
    assert published.is_set()
