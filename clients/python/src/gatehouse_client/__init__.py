"""Gatehouse from Python: `Client` calls a hub, `Worker` executes its tasks.

verbs.py has one method for each verb, client.py sends them, and worker.py is the loop around them. together.py joins the
calls of several threads, aio.py has the verbs as coroutines, transport.py keeps the connections. task.py is the run as a
handler sees it; functions.py makes functions task types, and celery.py and django/ serve apps of these.
inputs.py and outputs.py have the data of the API, which decoding.py reads; errors.py has its refusals.
"""

from gatehouse_client import inputs, outputs
from gatehouse_client.aio import AsyncClient
from gatehouse_client.client import Client
from gatehouse_client.errors import GatehouseError, LeaseLost, NotFinished, RateLimited, Refused, Unreachable
from gatehouse_client.task import Failed, Result, Stop, Task
from gatehouse_client.verbs import Posted
from gatehouse_client.worker import Worker

__all__ = [
    "AsyncClient",
    "Client",
    "Failed",
    "GatehouseError",
    "LeaseLost",
    "NotFinished",
    "Posted",
    "RateLimited",
    "Refused",
    "Result",
    "Stop",
    "Task",
    "Unreachable",
    "Worker",
    "inputs",
    "outputs",
]
