"""Measurements: each suite's cases beside their baselines, on a database of their own. Production runs nothing of it."""
