import json

import numpy as np
import pytest

from stmaml.serving.schema import Among, Form, Matrix, Number, Places, Records, Refused, Several, Text, Vector, Whole


@pytest.mark.parametrize(
    ("form", "value", "words"),
    [
        (Number("n"), True, "'a' must be a number between -1e+09 and 1e+09; got True."),
        (Number("n"), float("nan"), "got nan"),
        (Number("n"), 1e300, "got 1e+300"),
        (Number("n"), {}, "got an object"),
        (Whole("n", 1, 3), 2.0, "'a' must be a whole number from 1 to 3; got 2.0."),
        (Whole("n", 1, 3), 4, "got 4"),
        (Among("n", (0, 5)), 1, "'a' must be one of 0, 5; got 1."),
        (Text("t", ("x", "y")), "z", "'a' must be one of x, y; got 'z'."),
        (Text("t"), None, "'a' must be a text; got null."),
        (Vector("v", 2), [1, 2, 3], "'a' must be a list of at most 2 numbers; got a list of 3."),
        (Vector("v", 2), ["1"], "'a' must be made of numbers"),
        (Matrix("m", 2, 5), [[1, 2], [1]], r"'a\[1\]' must be a list of 2 numbers; got a list of 1."),
        (Matrix("m", 2, 5), [[1, None]], "got null"),
        (Matrix("m", 2, 1), [[1, 2], [1, 2]], "at most 1 rows"),
        (Places("p", 5), [0, -1], r"'a\[1\]' must be a whole number from 0; got -1."),
        (Several("s", Number("n"), 2), [], "'a' must be a list of 1 to 2; got a list of 0."),
        (Records("r", ("Days", "Reaction"), 3), [{"days": 1}], "a column 'days'.*Did you mean 'Days'"),
        (Records("r", ("Days",), 3), [{"Days": [1]}], r"'a\[0\].Days' must be a number, a text, true, false or null"),
        (Records("r", ("Days",), 3), [{"Days": "x" * 2000}], "2,000 characters; expected at most 1,000"),
        (Records("r", ("Days",), 3), [7], r"'a\[0\]' must be an object"),
        (Form("f", {"x": Number("The n.")}, ("x",)), {}, "'a' lacks 'x': The n."),
        (Form("f", {"draws": Number("n")}), {"draw": 1}, "'a' has no field 'draw'. Did you mean 'draws'?"),
        (Form("f", {"x": Number("n")}), [], "'a' must be an object; got a list of 0."),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(form, value, words):
    with pytest.raises(Refused, match=words.replace("?", r"\?").replace("+", r"\+")):
        form.check(value, "a")


def test_a_form_fills_in_what_is_left_out():
    form = Form("f", {"x": Vector("v", 3), "n": Whole("n", 0, 9), "t": Text("t")}, ("x",), {"n": 4})
    found = form.check({"x": [1, 2.5], "t": None}, "a")
    np.testing.assert_array_equal(found.pop("x"), [1, 2.5])
    assert found == {"n": 4, "t": None}


def test_a_joined_form_keeps_both_rules():
    def refuse(word):
        def rule(value, where):
            if value["x"] == 13:
                raise Refused(f"{word} at {where}")

        return rule

    mine, yours = ({"x": Number("n")} for _ in range(2))
    joined = Form("f", mine, rule=refuse("mine")).joined(Form("g", {"y": Number("n")}), "both")
    with pytest.raises(Refused, match="mine at a"):
        joined.check({"x": 13}, "a")
    joined = Form("f", {"y": Number("n")}).joined(Form("g", yours, rule=refuse("yours")), "both")
    with pytest.raises(Refused, match="yours at a"):
        joined.check({"x": 13}, "a")


def test_schemas_are_json_and_name_what_is_required():
    form = Form("f", {"x": Matrix("m", 2, 5), "r": Records("r", ("a",), 3)}, ("x",), {"r": []})
    schema = json.loads(json.dumps(form.schema()))
    assert schema["required"] == ["x"]
    assert schema["properties"]["x"]["items"] == {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
    }
    assert schema["properties"]["r"]["default"] == []
    assert schema["additionalProperties"] is False
