"""Handoff: what one session leaves to the next one, so that nobody has to search for it.

In files it works in any git repository, with neither Django nor a server: `items`, `places`, `files`, `outbox` and
`cli` need the standard library and a reader of YAML. With a server an item is a receipt of the source
`session_handoff`, and `sync` carries items across, each of them once.
"""
