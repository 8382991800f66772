"""What lists are narrowed to, in the one form in which only their own index serves their order."""

from django.db.models import BooleanField, F, Func, Value


def is_among(column: str, value: int | str, type_: str) -> Func:
    """What a list is narrowed to, named by an array and to be sorted by, lest that be void: then the newest of all would
    serve the order, too."""
    template = f"%(expressions)s::{type_}])"
    return Func(F(column), Value(value), template=template, arg_joiner=" = any(array[", output_field=BooleanField())
