"""The orders of the shop."""

from django.db import models


class Order(models.Model):
    """An order, which a task confirms."""

    item = models.CharField(max_length=100)
    confirmed = models.BooleanField(default=False)
