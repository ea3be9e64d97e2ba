"""The pages of the shop: one takes an order, one shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import bus, confirm

if TYPE_CHECKING:
    from django.http import HttpRequest


@csrf_exempt
def take(request: HttpRequest) -> JsonResponse:
    """Store an order, and publish its task once the transaction has committed.

    A process that dies between the two publishes nothing. Where that matters, send an event in the
    transaction instead: see "Transactional events" in the documentation.
    """
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        transaction.on_commit(lambda: confirm.publish(bus(), order.pk))
    return JsonResponse({"order": order.pk}, status=202)


def show(_request: HttpRequest, order: int) -> JsonResponse:
    """Show an order."""
    found = get_object_or_404(Order, pk=order)
    return JsonResponse({"item": found.item, "confirmed": found.confirmed})


urlpatterns = [path("orders", take), path("orders/<int:order>", show)]
