"""What several operations on memory take."""

from typing import Annotated

from pydantic import Field, StringConstraints

from apps.core.schemas import Text
from apps.memory.references import LONGEST_SUBJECT_ID, SUBJECT_ID

Words = Annotated[Text, StringConstraints(min_length=1, max_length=65_536)]

Label = Annotated[Text, StringConstraints(min_length=1, max_length=200)]

Domain = Annotated[Text, StringConstraints(min_length=1, max_length=100)]

Share = Annotated[float, Field(ge=0, le=1)]

# Whom memories are about: a kind in capitals and a name, `USER:246030816692404234`.
SubjectId = Annotated[str, StringConstraints(max_length=LONGEST_SUBJECT_ID, pattern=rf"^{SUBJECT_ID}$")]
