"""The REST API: thin endpoints over the services. Gate → service → shape.

How an endpoint is written, in a router that `jobscheduler/api.py` lists::

    router = Router(tags=["things"])

    class ThingFilters(Paged):                       # query string: known parameters only, each through a gate
        name: Annotated[str | None, *gated(parsing.identifier, {"type": "string"})] = None

    class ThingIn(Said):                             # bodies: which fields there are; services judge what is in them
        name: Annotated[Any, WithJsonSchema({"type": "string"})]

    @router.get("/things", **operation("things_list", ThingPage))
    def things_list(request: ApiRequest, asked: Annotated[ThingFilters, Asked()]) -> HttpResponse:
        rows = Thing.objects.filter(tenant=...)      # always starts from request.auth (an `auth.Caller`)
        return answer(page(request.auth, "things_list", asked, rows, Order(Thing, ("-pk",)), shape))

    @router.post("/things", **operation("things_create", {201: ThingOut}, scope="admin", body=True, problems=[409]))
    def things_create(request: ApiRequest, body: Annotated[ThingIn, Document()]) -> HttpResponse:
        tenant = request.auth.tenant_for(body.given_fields().get("tenant"))          # 403 for another tenant's
        return answer(shape(services.make(..., actor=request.auth.actor)), 201)

    @router.get("/things/{thing_id}", **operation("things_get", ThingOut, problems=[404]))
    def things_get(request: ApiRequest, thing_id: Annotated[str, WithJsonSchema(ID_SCHEMA)]) -> HttpResponse:
        return tagged(request, shape(...))           # with an ETag; `raise NotFound` for absent and foreign alike

Errors: raise what is in `jobs.errors` (or a `responses.Refusal`); `responses.answer_to` turns it into problem+json.
Responses are made by hand (`answer`, `tagged`, `nothing`); the schemas in `operation(...)` document them.
Submissions: `**KEYED` in `operation(...)` and `submit(request, said)` of `idempotency`.
Scopes: `scope="read"` by default; `permission="cancel_job"` is what a session needs instead (see `auth.needs`).
"""
