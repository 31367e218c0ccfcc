from jobs import job
from shop.models import Receipt


@job("shop.receipt")
def print_receipt(ctx, order: int) -> dict:
    Receipt.objects.create(order=order)
    return {"order": order}
