"""What every app stands on: errors, clock, ids, pagination, operations, outbound guard.

Core has no tables and no domain words. Whatever knows what a tenant, a receipt or a task is lives above.
"""
