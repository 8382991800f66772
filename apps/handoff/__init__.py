"""Handoff: the items that one session leaves to the next.

The file protocol works in any git repository without Django or a server: `items`, `files` and `cli` need the standard
library and PyYAML. With a server an item is a receipt of the source `session_handoff`. `sync` moves items
between the two, each once.
"""
