"""What agents know: observations, patterns, concepts and their relationships, sessions, recall, and bootstrap.

Nothing is authoritative merely because it is remembered: every row says who wrote it, when, how sure they were and
on what evidence. This app reads inboxes for bootstrap; it knows nothing of tasks, plans or workers.
"""
