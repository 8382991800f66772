"""AsyncGate: leased work that outlives whoever asked for it.

PostgreSQL holds every task; whoever executes one (an outside worker, a Celery process) holds a lease with a
fencing_token. A task ends exactly once, in one transaction with the receipt that says so. Not here: what a task does.
"""
