"""The tasks of the shop, and the bus on which its views publish them.

Run their worker with `agentbus work shop.tasks:tasks`, beside `manage.py`.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import django
from django.apps import apps
from django.db import close_old_connections

import agentbus

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
if not apps.ready:
    # In a worker; the server has done it before it imports this.
    django.setup()

tasks = agentbus.Tasks()


class Database:
    """Stands for Django's connection, which a worker keeps for many tasks."""


def database() -> Iterator[Database]:
    """Begin and end each task without connections that the database has closed, as a request does."""
    close_old_connections()
    yield Database()
    close_old_connections()


tasks.provide(Database, database, per="task")


@tasks.task(queue="orders", attempts=5, given=Database)
def confirm(_database: Database, order: int) -> str:
    """Confirm an order. It may run twice, and comes to the same."""
    from shop.models import Order

    found = Order.objects.get(pk=order)
    found.confirmed = True
    found.save(update_fields=["confirmed"])
    return found.item


@functools.cache
def bus() -> agentbus.Bus:
    """Return the bus of this process, which all of its threads share."""
    return agentbus.connect()
