"""A Django project in one file, whose rows' numbers come from hapax. DATABASE_NAME, _USER, _HOST and
_PORT name a PostgreSQL database, HAPAX_URL the server.

    python django_orders.py            # creates the table and inserts a row
    gunicorn django_orders:application # WSGI
    uvicorn django_orders:asgi         # ASGI
"""

import os

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            **{key: os.environ.get("DATABASE_" + key, "") for key in ("NAME", "USER", "HOST", "PORT")},
        }
    },
    HAPAX={"servers": [os.environ["HAPAX_URL"]]},
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection, models  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

from hapax.django import HapaxField, client  # noqa: E402


class Order(models.Model):
    """An order, whose number is there before it is inserted."""

    id = HapaxField("orders", primary_key=True)
    what = models.TextField()

    class Meta:
        app_label = "orders"
        db_table = "django_orders"


def create(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(Order.objects.create(what="tea").pk))


async def acreate(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str((await Order.objects.acreate(what="tea")).pk))


urlpatterns = [path("order", create), path("aorder", acreate)]
application = get_wsgi_application()
asgi = get_asgi_application()


def create_table() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Order)


def insert(rows: int) -> None:
    """Inserts in batches."""
    for at in range(0, rows, 250):
        Order.objects.bulk_create([Order(what="tea") for _ in range(min(250, rows - at))])


if __name__ == "__main__":
    create_table()
    insert(1)
    client().close()
