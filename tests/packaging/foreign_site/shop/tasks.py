from importlib.util import find_spec

if find_spec("django.tasks"):
    from django.tasks import task
else:
    from django_tasks import task


@task
def add(a, b):
    return a + b


@task
async def add_later(a, b):
    return a + b


@task(takes_context=True)
def fail(context, times):
    if context.attempt <= times:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt
