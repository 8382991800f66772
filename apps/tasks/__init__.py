"""AsyncGate: tasks that outlive whoever asked for them.

PostgreSQL holds every task. A task worker (an outside program, or this product's Celery processes) holds a
lease with a fencing token. A task ends exactly once, in one transaction with its receipt. What a task does is
not here.
"""
