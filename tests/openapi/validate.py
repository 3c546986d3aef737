"""Holds answers against an OpenAPI document; one line for each thing that is wrong.

Reads {"document": ..., "seen": [{"method", "path", "status", "headers", "body"}]}. With --complete also what is documented and
was not seen. Runs in the environment of harness/openapi.py.
"""

import json
import sys

import jsonschema_rs

data = json.load(sys.stdin)
doc = data["document"]


def resolve(o):
    while "$ref" in o:
        part = doc
        for name in o["$ref"].removeprefix("#/").split("/"):
            part = part[name]
        o = part
    return o


def errors(schema, value):
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [schema], "components": doc["components"]}
    return [f"{'/'.join(map(str, e.instance_path))}: {e.message}" for e in jsonschema_rs.validator_for(whole, validate_formats=True).iter_errors(value)]


def check_headers(documented, fields):
    for name, header in documented.items():
        values = [v for k, v in fields if k.lower() == name.lower()]
        if name == "X-Request-Id" and len(values) != 1:
            yield "no X-Request-Id"
        for v in values:
            yield from (f"{name}: {e}" for e in errors(resolve(header)["schema"], v))


def check_body(response, answer):
    kind = next((v.split(";")[0] for k, v in answer["headers"] if k.lower() == "content-type"), None)
    content = response.get("content", {})
    if not content:
        if answer["body"]:
            yield "a body, and none is documented"
        return
    if kind not in content:
        yield f"the type {kind} is not documented"
        return
    value = json.loads(answer["body"]) if "json" in kind else answer["body"]
    yield from errors(content[kind]["schema"], value)
    if kind == "application/problem+json" and value.get("status") != answer["status"]:
        yield "the status of the problem is another one"


def check(answer):
    """(which documented answer it is, what is wrong with it)"""
    op = doc["paths"].get(answer["path"], {}).get(answer["method"])
    responses = op["responses"] if op else {"default": {"$ref": "#/components/responses/Other"}}
    name = str(answer["status"]) if str(answer["status"]) in responses else "default"
    if answer["status"] < 400 and name == "default":
        return None, ["is not documented"]
    response = resolve(responses[name])
    return (answer["path"], answer["method"], name), [*check_headers(response.get("headers", {}), answer["headers"]), *check_body(response, answer)]


jsonschema_rs.meta.validate({**doc["components"]["schemas"]["Sandbox"], "$schema": "https://json-schema.org/draft/2020-12/schema"})
seen = set()
for answer in data["seen"]:
    name, wrong = check(answer)
    seen.add(name)
    for w in wrong:
        print(f"{answer['method'].upper()} {answer['path']} {answer['status']}: {w}: {answer['body'][:300]}")
if "--complete" in sys.argv:
    for path, methods in doc["paths"].items():
        for method, op in methods.items():
            for status in op["responses"]:
                if (path, method, status) not in seen:
                    print(f"{method.upper()} {path} {status}: is documented and was not seen")
