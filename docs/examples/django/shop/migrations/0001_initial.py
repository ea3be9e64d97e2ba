"""Creates the table of orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first tables."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("item", models.CharField(max_length=100)),
                ("confirmed", models.BooleanField(default=False)),
            ],
        ),
    ]
