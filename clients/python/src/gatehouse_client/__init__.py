"""Gatehouse from Python: `Client` calls a hub, `Worker` executes its tasks.

client.py has one method for each verb, and worker.py the loop around them. task.py is the run as a handler sees it.
shapes.py has the data of the API, errors.py its refusals.
"""

from gatehouse_client import shapes
from gatehouse_client.client import Client
from gatehouse_client.errors import GatehouseError, LeaseLost, NotFinished, RateLimited, Refused, Unreachable
from gatehouse_client.shapes import Completion, Failure
from gatehouse_client.task import Failed, Result, Stop, Task
from gatehouse_client.worker import Worker

__all__ = [
    "Client",
    "Completion",
    "Failed",
    "Failure",
    "GatehouseError",
    "LeaseLost",
    "NotFinished",
    "RateLimited",
    "Refused",
    "Result",
    "Stop",
    "Task",
    "Unreachable",
    "Worker",
    "shapes",
]
