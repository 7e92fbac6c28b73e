import pytest

from rheobase.io import find_name

KNOWN = {"max-norm": 1, "Robust": 2}


@pytest.mark.parametrize(
    ("name", "near"), [("max-nrom", "max-norm"), ("MAX-NORM", "max-norm"), ("robus", "Robust")]
)
def test_an_unknown_name_suggests_the_nearest_and_lists_all(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"method '{name}'.*'{near}'.*max-norm, Robust"):
        find_name("method", name, KNOWN)


def test_owner_hint_and_class_of_the_error() -> None:
    with pytest.raises(TypeError, match=r"'zzz' of opi.*none, or a number") as caught:
        find_name("setting", "zzz", {}, of="opi", hint="or a number", error=TypeError)
    assert "did you mean" not in str(caught.value)


def test_a_long_list_is_cut() -> None:
    with pytest.raises(ValueError, match="29 and 5 more"):
        find_name("thing", "x", {str(number): number for number in range(35)})
