"""Schemas that all endpoints share: ids, times, pages and problems."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

T = TypeVar("T")

ID_SCHEMA = {"type": "string", "format": "uuid"}
TIME_SCHEMA = {"type": "string", "format": "date-time", "examples": ["2030-01-31T12:00:00Z"]}

Id = Annotated[str, WithJsonSchema(ID_SCHEMA)]
Time = Annotated[str, WithJsonSchema(TIME_SCHEMA)]
JsonObject = Annotated[Any, WithJsonSchema({"type": "object"})]


def words(values: Any) -> dict[str, Any]:
    return {"type": "string", "enum": [str(value) for value in values]}


class Out(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorOut(Out):
    loc: list[str | int] = Field(description="Where: body, query or header, and the way to the field.")
    msg: str
    type: str


class Problem(BaseModel):
    """application/problem+json, RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="What a program should look at.")
    errors: list[ErrorOut] = Field(default=[], description="422 and 400: which fields are wrong.")
    state: str | None = Field(default=None, description="409: the state of the job; with `tail_id`, of that job.")
    allowed: list[str] = Field(default=[], description="409: the actions that the job accepts now.")
    field: str | None = Field(default=None, description="409: the field that cannot be changed.")
    tail_id: Id | None = Field(
        default=None, description="409 `live_tail` and `superseded`: the latest attempt of the job's retry chain."
    )
    error_id: str | None = Field(default=None, description="500: what to look for in the log.")


class Page(Out, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(
        description="For the next page; null at the end. A page may be shorter than `limit` while there is one."
    )
