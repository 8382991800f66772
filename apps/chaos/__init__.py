"""Chaos: the product as it is started everywhere, broken on purpose, and a judge who reads what was answered."""
