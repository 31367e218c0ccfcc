"""The REST API: thin endpoints over the services. Validate, call a service, serialize.

An endpoint belongs to a router that `jobscheduler/api.py` lists::

    router = Router(tags=["things"])

    class ThingFilters(Paged):                  # query string: known parameters only, each with a validator
        name: Annotated[str | None, *validated_by(fields.parse_identifier, {"type": "string"})] = None

    class ThingIn(RequestBody):                 # body: names the fields; services validate the values
        name: Annotated[Any, WithJsonSchema({"type": "string"})]

    @router.get("/things", **operation("things_list", ThingPage, "List things"))
    def things_list(request: ApiRequest, query: Annotated[ThingFilters, StrictQuery()]) -> HttpResponse:
        rows = Thing.objects.filter(tenant=...)  # always starts from request.auth (an `auth.Principal`)
        return json_response(paginate(request.auth, "things_list", query, rows, Order(Thing, ("-pk",)), serialize))

    @router.post("/things", **operation("things_create", {201: ThingOut}, scope="admin", body=True, problems=[409]))
    def things_create(request: ApiRequest, body: Annotated[ThingIn, JsonBody()]) -> HttpResponse:
        tenant = request.auth.resolve_tenant(body.given_fields().get("tenant"))  # 403 for another tenant
        return json_response(serialize(services.create(..., actor=request.auth.actor)), 201)

    @router.get("/things/{thing_id}", **lookup("things_get", ThingOut, "Get a thing"))
    def things_get(request: ApiRequest, thing_id: Id) -> HttpResponse:
        return etag_response(request, serialize(...))  # NotFound for absent objects and those of other tenants

Errors: raise those of `jobs.errors` or a `problems.ApiError`; `problems.error_response` returns problem+json for them.
Responses: `json_response`, `etag_response` and `empty_response`; the schemas in `operation(...)` document them.
Submissions: `**WITH_IDEMPOTENCY_KEY` in `operation(...)`, and `submit_job(request, fields)` of `idempotency`.
Scopes: `scope="read"` by default; sessions, and users who made a token, need the `permissions` (see `operation`).
"""
