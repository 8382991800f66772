"""What several operations on memory take."""

from typing import Annotated

from pydantic import Field, StringConstraints

from apps.core.schemas import Text

Words = Annotated[Text, StringConstraints(min_length=1, max_length=65_536)]

Label = Annotated[Text, StringConstraints(min_length=1, max_length=200)]

Domain = Annotated[Text, StringConstraints(min_length=1, max_length=100)]

Share = Annotated[float, Field(ge=0, le=1)]

# Whom memories are about: a kind in capitals and a name, `USER:246030816692404234`. Of ASCII its signs are letters,
# digits and `_:@.+~-`, by which it is found whole where somebody is forgotten: see core.erasure.
_OTHERS = r"\x00-*,/;-?\[-^`{-}\x7f"
SubjectId = Annotated[
    str, StringConstraints(max_length=200, pattern=rf"^[A-Z][A-Z0-9_]{{0,29}}:[^{_OTHERS}]*[^.{_OTHERS}]$")
]
