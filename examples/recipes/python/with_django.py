"""Django: the primary key's default is a number from hapax."""
import os
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connection, models

from hapax_ids import Numbers

database = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": database.hostname,
            "PORT": database.port,
            "USER": database.username,
            "NAME": database.path.lstrip("/"),
        }
    }
)
django.setup()

orders = Numbers("django-orders")


class Order(models.Model):
    id = models.BigIntegerField(primary_key=True, default=orders.next, editable=False)
    what = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "recipe_django"


if sys.argv[1] == "create":
    with connection.schema_editor() as schema:
        schema.create_model(Order)
    sys.exit()

Order.objects.create(what="before the fork")
connection.close()  # a connection is not shared, either
child = os.fork()
for n in range(int(sys.argv[1])):
    Order.objects.create(what=f"order {n}")
Order.objects.bulk_create(Order(what=f"bulk {n}") for n in range(int(sys.argv[1])))
if child:
    sys.exit(os.waitpid(child, 0)[1] != 0)
