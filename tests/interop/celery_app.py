"""The Celery application that a worker process and the test share; the broker's address comes from the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("celery_app", broker=os.environ.get("STRATAMQ_TEST_AMQP", ""), backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    result_expires=60,
)


@app.task
def note(number: int, directory: str) -> int:
    """Leave a file behind, after a little work."""
    time.sleep(0.005)
    Path(directory, str(number)).touch()
    return number


@app.task
def add(one: int, other: int) -> int:
    """The sum."""
    return one + other
