"""Commands of executions: start, advance, submit a result, decide, cancel, replan.

Locks are taken in the order execution, steps, then what lies below. No transaction is open during a call of a worker.
"""
