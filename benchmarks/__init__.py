"""Measurements of the product beside its peers. The product imports nothing from here."""
