"""What every app stands on: errors, ids, pagination, SQL and the database's clock, operations, outbound guard.

Core has no tables and no domain words. Whatever knows what a tenant, a receipt or a task is lives above.
"""
