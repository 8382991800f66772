"""Activation: waking agents when something is waiting for them.

Stands above the inbox and only looks at it: a post or an ack knows nothing of targets.
"""
