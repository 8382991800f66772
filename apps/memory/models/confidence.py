"""How sure somebody is of a thing: a number from 0 to 1."""

from django.db import models
from django.db.models import Q


def sure(name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(confidence__gte=0, confidence__lte=1), name=name)
