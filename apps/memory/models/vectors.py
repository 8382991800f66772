"""What passages mean, where the deployment names an embedder."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from apps.memory.models.passages import Passage
from apps.principals.models import TenantModel


class RealField(models.FloatField):  # type: ignore[type-arg]  # it takes none where it runs
    """A number in four bytes."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:  # as it is called
        return "real"


class Vector(TenantModel):
    """What a passage meant when it was embedded last, as a vector of length 1.

    It counts as long as the passage names the same embedder: see Passage. `scope` is the passage's. The numbers are an
    array, which needs no extension of PostgreSQL; recall reads it as one of pgvector's.
    """

    passage = models.OneToOneField(Passage, on_delete=models.CASCADE, related_name="vector")
    scope = models.BigIntegerField()
    embedder = models.IntegerField()
    embedding = ArrayField(RealField())

    class Meta:
        indexes = [
            # Serves sql.recall_by_meaning(), where it looks at each.
            models.Index(fields=["tenant", "scope", "embedder"], name="memory_vector_of_scope"),
        ]

    def __str__(self) -> str:
        return f"vector of {self.passage_id}"
