"""How tokens prove who calls."""
