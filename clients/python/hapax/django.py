"""Numbers as defaults of Django's fields, under WSGI and ASGI.

    HAPAX = {"servers": ["http://127.0.0.1:8080"]}          # settings.py; other keys are Client's

    class Order(models.Model):
        id = HapaxField("orders", primary_key=True)

Every process has one client, made at its first number; workers that a server forks have their own.
Objects have their numbers when they are made, so bulk_create needs no returned keys.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import models

from . import Client, Tag

_clients: dict[str, Client] = {}  # at most one; no lock, which a fork could find held


def client() -> Client:
    """The client that settings.HAPAX describes."""
    if not _clients:
        options = dict(getattr(settings, "HAPAX", None) or {})
        servers = options.pop("servers", None)
        if not servers:
            raise ImproperlyConfigured('settings.HAPAX: want {"servers": ["http://127.0.0.1:8080"]}')
        _clients.setdefault("", Client(*servers, **options))  # one of two at once stays unused
    return _clients[""]


class Number:
    """A default that takes the next number of a tag. Migrations can write it down."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._numbers: Tag | None = None

    def __call__(self) -> int:
        if self._numbers is None:
            self._numbers = client().tag(self.tag)
        return self._numbers.next()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and other.tag == self.tag

    def __hash__(self) -> int:
        return hash(self.tag)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return "hapax.django.Number", [self.tag], {}


class HapaxField(models.BigIntegerField):
    """A BigIntegerField whose default is the next number of a tag."""

    def __init__(self, tag: str, *args: Any, **kwargs: Any) -> None:
        self.tag = tag
        kwargs.setdefault("editable", False)
        kwargs.setdefault("default", Number(tag))
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        name, path, args, kwargs = super().deconstruct()
        if kwargs.get("default") == Number(self.tag):
            del kwargs["default"]
        if kwargs.get("editable") is False:
            del kwargs["editable"]
        return name, path, [self.tag, *args], kwargs
