"""A Celery set up as its manual says for work that must not be lost: `celery -A benchmarks.peers.celery_app`."""

import os

from celery import Celery

PREFIX = "peer:"
# Without Django's fixup, which would open and close a database connection around each task.
app = Celery("bench", broker=os.environ["GATEHOUSE_BENCH_BROKER"], fixups=[])
app.conf.update(
    broker_transport_options={"global_keyprefix": PREFIX},
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="bench",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(name="echo")
def echo(**_params: object) -> None:
    """Do nothing."""
