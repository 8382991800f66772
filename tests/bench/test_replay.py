"""How statements become a script that pgbench can say again."""

import pytest

from apps.bench import load
from apps.bench.replay import Said


def test_a_named_parameter_is_one_variable_however_often_it_stands() -> None:
    said = Said("select %(a)s::int, %(b)s::text[], %(a)s::int", {"a": 1, "b": ["x"]})

    text, values = said.named(iter(["v0", "v1"]))

    assert text == "select :v0::int, :v1::text[], :v0::int"
    assert values == {"v0": 1, "v1": ["x"]}


def test_parameters_without_names_are_variables_in_their_order() -> None:
    said = Said("select 7 %% 2, %s, %s", (3, 3))

    text, values = said.named(iter(["v0", "v1"]))

    assert text == "select 7 % 2, :v0, :v1"
    assert values == {"v0": 3, "v1": 3}


def test_what_pgbench_would_take_for_a_variable_is_refused() -> None:
    said = Said("select to_char(now(), 'HH:MI'), %s", (1,))

    with pytest.raises(load.ClientFailed, match="misread"):
        said.named(iter(["v0"]))
