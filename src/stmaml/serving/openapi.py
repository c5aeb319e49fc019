"""The OpenAPI document: made from the forms that check requests."""

from stmaml.serving.base import AbstractServed
from stmaml.serving.schema import Form, Json, Several, Text, Whole
from stmaml.serving.service import Service

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
PROBLEMS = {
    "400": "The request cannot be used; the sentence says why.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from another web page.",
    "404": "There is no such learner or adaptation.",
    "413": "The request is too large.",
    "415": "The request is not JSON.",
    "503": "Too many requests at once, or a program is still being compiled: ask again.",
}
COUNT = Whole("", 0, 2**31)


def document(service: Service, version: str, *, token: bool) -> Json:
    """All that can be asked, for each learner by its name."""
    paths = {
        "/health": {"get": _reading("Whether it is well.", _health())},
        "/version": {"get": _reading("Its version.", Form("", {"version": Text("Of stmaml.")}))},
        "/learners": {"get": _reading("All learners.", Form("", {"learners": Several("", _listed(), 100)}))},
    }
    for name, one in service.learners.items():
        paths |= _paths(name, one)
    about = {"title": "stmaml serve", "version": version, "description": "Few-shot learners that adapt and predict."}
    whole: Json = {"openapi": "3.1.0", "info": about, "paths": paths}
    if token:
        whole["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        whole["security"] = [{"token": []}]
    return whole


def _health() -> Form:
    counts = {"learners": COUNT, "kept": COUNT, "waiting": COUNT}
    return Form("", {"status": Text("ok, or warming up"), "version": Text("Of stmaml."), **counts})


def _listed() -> Form:
    return Form("", {name: Text("") for name in ("name", "title", "page", "method")})


def _paths(name: str, one: AbstractServed) -> Json:
    forms, home = one.forms, f"/learners/{name}"
    number = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    kept = Form("", {"id": Text("Its number."), "shots": Whole("Labelled examples.", 0, 2**31)})
    forget = _answers("Forgets an adaptation.", Form("", {"forgotten": Text("Its number.")}))
    batch = Form("", {"groups": Several("A prediction for each group.", forms.answer, 1000)})
    paths = {
        home: {"get": _reading(f"What {name} is, and what its page begins with.", None)},
        f"{home}/predict": {"post": _asking("Adapts and predicts in one call.", forms.predict, forms.answer)},
        f"{home}/batch": {"post": _asking("Adapts to several groups and predicts each.", forms.batch, batch)},
        f"{home}/adaptations": {"post": _asking("Adapts once, to predict many times.", forms.taught, kept, "201")},
        f"{home}/adaptations/{{id}}": {"parameters": [number], "delete": forget},
        f"{home}/adaptations/{{id}}/predict": {
            "parameters": [number],
            "post": _asking("Predicts with an adaptation.", forms.asked, forms.answer),
        },
    }
    for what, extra in forms.extras.items():
        paths[f"{home}/{what}"] = {"post": _asking(extra.answer.words, extra.form, extra.answer)}
    return paths


def _asking(summary: str, form: Form, answer: Form, status: str = "200") -> Json:
    body = {"required": True, "content": {"application/json": {"schema": form.schema()}}}
    return {**_answers(summary, answer, status), "requestBody": body}


def _reading(summary: str, answer: Form | None) -> Json:
    return _answers(summary, answer)


def _answers(summary: str, answer: Form | None, status: str = "200") -> Json:
    schema = {"type": "object"} if answer is None else answer.schema()
    problems = {
        code: {"description": words, "content": {"application/json": {"schema": ERROR}}}
        for code, words in PROBLEMS.items()
    }
    found = {"description": summary, "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {status: found, **problems}}
