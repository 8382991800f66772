"""Receipts: immutable facts about what happened, the chain between them, and the obligations they open and close.

Nothing here knows inboxes or digests. Writing a receipt is a command of the app above, which records the fact
here and places it in an inbox in the same transaction.
"""
