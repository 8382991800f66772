"""The verbs of AsyncGate. Each is one transaction, inside the one that acts for the caller."""
