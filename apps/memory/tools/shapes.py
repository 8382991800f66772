"""What several operations on memory take."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from apps.core.schemas import Text
from apps.memory.references import LONGEST_SUBJECT_ID, SUBJECT_ID

Words = Annotated[Text, StringConstraints(min_length=1, max_length=65_536)]

Label = Annotated[Text, StringConstraints(min_length=1, max_length=200)]

# By which a memory, or whatever else, is named: `concept:` and a key may be longer than a label.
Ref = Annotated[Text, StringConstraints(min_length=1, max_length=300)]

Domain = Annotated[Text, StringConstraints(min_length=1, max_length=100)]


Share = Annotated[float, Field(ge=0, le=1)]

_SUBJECT_ID: Final = re.compile(SUBJECT_ID)


def _subject_id(given: str) -> str:
    if _SUBJECT_ID.fullmatch(given) is None:
        raise ValueError(
            "is no subject's id: a kind in capitals, a colon and a name of letters, digits and, but for its end, _:@.+~-,"
            " such as USER:246030816692404234"
        )
    return given


# Whom memories are about: a kind in capitals and a name, `USER:246030816692404234`.
SubjectId = Annotated[
    str,
    StringConstraints(max_length=LONGEST_SUBJECT_ID),
    AfterValidator(_subject_id),
    WithJsonSchema({"type": "string", "maxLength": LONGEST_SUBJECT_ID, "pattern": f"^{SUBJECT_ID}$"}),
]
