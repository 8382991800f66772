"""Defects that the tests must catch: `python -m tests.mutants` puts each into the tree and runs its tests."""
