"""Schemas that all endpoints share: ids, times, pages and problems."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

T = TypeVar("T")

ID_SCHEMA = {"type": "string", "format": "uuid"}
TIME_SCHEMA = {"type": "string", "format": "date-time", "examples": ["2030-01-31T12:00:00Z"]}

Id = Annotated[str, WithJsonSchema(ID_SCHEMA)]
Time = Annotated[str, WithJsonSchema(TIME_SCHEMA)]
# Without `additionalProperties` generated clients allow no key at all.
FREE_OBJECT = {"type": "object", "additionalProperties": True}
JsonObject = Annotated[Any, WithJsonSchema(FREE_OBJECT)]


def enum_schema(values: Any) -> dict[str, Any]:
    """Return the JSON Schema of a string that is one of these values."""
    return {"type": "string", "enum": [str(value) for value in values]}


class Out(BaseModel):
    model_config = ConfigDict(extra="forbid")


# True, or absent.
Truncated = Annotated[
    bool,
    Field(description="In lists, payload that is too large for them is null and this is true: get the object itself."),
]


class ErrorOut(Out):
    loc: list[str | int] = Field(description="Location: body, query, header or path, then the path to the field.")
    msg: str
    type: str


class Problem(BaseModel):
    """application/problem+json, RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="For programs: stable, unlike the texts.")
    errors: list[ErrorOut] = Field(default=[], description="422 and 400: which fields are wrong.")
    state: str | None = Field(default=None, description="409: the state of the job; with `tail_id`, of that job.")
    allowed: list[str] = Field(default=[], description="409: the actions that the job accepts now.")
    field: str | None = Field(default=None, description="409: the field that cannot be changed.")
    tail_id: Id | None = Field(
        default=None, description="409 `live_tail` and `superseded`: the latest attempt of the job's retry chain."
    )
    error_id: str | None = Field(default=None, description="500: the id of the error in the server log.")


class Page(Out, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(
        description="Cursor of the next page; null at the end. A page before the last may be shorter than `limit`."
    )
