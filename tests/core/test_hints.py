"""Hints: lost or failing, they cost latency and nothing else."""

import pytest
from django.db import transaction
from django.dispatch import Signal

from apps.core.hints import hint_on_commit

something_changed = Signal()


def test_a_failing_receiver_hinders_neither_the_commit_nor_the_other_receivers(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    heard = []

    def failing(**facts: object) -> None:
        raise ZeroDivisionError

    def listening(*, number: int, **facts: object) -> None:
        heard.append(number)

    something_changed.connect(failing)
    something_changed.connect(listening)
    with transaction.atomic():
        hint_on_commit(something_changed, number=1)
        hint_on_commit(something_changed, number=2)
        assert heard == []

    assert heard == [1, 2]
    assert "failing" in caplog.text


def test_a_transaction_that_is_rolled_back_hints_at_nothing(transactional_db: None) -> None:
    heard = []

    def listening(**facts: object) -> None:
        heard.append(facts)

    something_changed.connect(listening)
    with transaction.atomic():
        hint_on_commit(something_changed, number=1)
        transaction.set_rollback(True)
    assert heard == []
