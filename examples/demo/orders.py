"""The events that the demo sends: orders, their payments and shipments. Pure and seeded.

Every event has two keys, its order and its customer, and every order a short life: created, mostly paid, shipped. What
event N is depends on nothing but the seed and N, so the sender and whoever checks need not tell each other anything.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TOPICS: Final = ("orders", "payments", "shipments")
QUEUES_PER_TOPIC: Final = 4
SEED: Final = 20_240_601

BODY_BYTES_MIN: Final = 200
BODY_BYTES_MAX: Final = 4000
CUSTOMERS: Final = 5000

# Topic and tag of each step in an order's life. What share of orders goes which way stands in `_life`.
CREATED: Final = ("orders", "created")
PAID: Final = ("payments", "paid")
DECLINED: Final = ("payments", "declined")
CANCELLED: Final = ("orders", "cancelled")
SHIPPED: Final = ("shipments", "shipped")
RETURNED: Final = ("shipments", "returned")

_GOODS: Final = (
    ("kettle", 34.9), ("desk lamp", 49.0), ("notebook, ruled", 4.5), ("rain jacket", 119.0), ("bicycle bell", 12.9),
    ("coffee beans, 1 kg", 21.5), ("garden hose", 38.0), ("headphones", 89.9), ("chess set", 45.0), ("tent", 249.0),
    ("phone cable", 9.9), ("tea towel", 7.5), ("wool socks", 14.0), ("screwdriver set", 27.8), ("bread knife", 32.0),
)  # fmt: skip
_STREETS: Final = ("Harbour Road", "Mill Lane", "Station Street", "Church Hill", "Rosengasse", "Rue du Moulin")
_CITIES: Final = (("Bergen", "NO"), ("Lyon", "FR"), ("Porto", "PT"), ("Graz", "AT"), ("Gdańsk", "PL"), ("Malmö", "SE"))
_NAMES: Final = ("Ada Lind", "Jonas Weber", "Inês Rocha", "Marek Nowak", "Chloé Martin", "Nils Berg", "Sara Holm")
_NOTES: Final = (
    "Please ring twice.", "Leave it with the neighbour on the ground floor.", "It is a gift: no invoice in the box.",
    "The gate code is at the door.", "Call before delivery, the street is closed in the morning.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One message: where it goes and what is in it."""

    number: int
    topic: str
    tag: str
    keys: str
    body: bytes

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for topic, tag, keys and body."""
        return digest(self.topic, self.tag, self.keys, self.body)


def digest(topic: str, tag: str, keys: str, body: bytes) -> bytes:
    """Fingerprint of a message's content, 16 bytes."""
    head = "\0".join((topic, tag, keys, "")).encode()
    return hashlib.blake2b(head + body, digest_size=16).digest()


def events(count: int, *, seed: int = SEED, start: int = 0, step: int = 1) -> Iterator[Event]:
    """Events ``start, start+step, ...`` below ``count``. With step = senders each sender makes its own share.

    Cost: about 35 us an event.
    """
    for number in range(start, count, step):
        yield event(number, seed=seed)


def event(number: int, *, seed: int = SEED) -> Event:
    """Event ``number``. Three in a row belong to the same order, in the order of its life."""
    order, place = divmod(number, 3)
    chance = random.Random(seed * 1_000_003 + order)
    topic, tag = _life(chance)[place]
    order_id = f"ORD-{order:08d}-{chance.randrange(16**4):04X}"
    # Some customers buy all the time, most of them once in a while.
    customer = f"CUST-{int(CUSTOMERS * chance.random() ** 3):04d}"
    document: dict[str, object] = {"event": number, "order_id": order_id, "customer": customer, "type": tag}
    document |= _details(order, place, tag, chance)
    return Event(number, topic, tag, f"{order_id} {customer}", _sized(document, chance))


def _life(chance: random.Random) -> tuple[tuple[str, str], ...]:
    """What happens to an order, in three steps."""
    draw = chance.random()
    if draw < 0.86:
        return CREATED, PAID, SHIPPED
    if draw < 0.92:
        return CREATED, DECLINED, CANCELLED
    return CREATED, SHIPPED, RETURNED


def _details(order: int, place: int, tag: str, chance: random.Random) -> dict[str, object]:
    """The part of a body that a reader would look at."""
    name, (city, country) = chance.choice(_NAMES), chance.choice(_CITIES)
    # A few large baskets, many small ones.
    items: list[dict[str, str | int | float]] = []
    for _ in range(min(18, 1 + int(chance.expovariate(0.35)))):
        title, price = chance.choice(_GOODS)
        items.append(
            {"sku": f"SKU-{chance.randrange(100_000):05d}", "title": title, "qty": chance.randint(1, 4), "price": price}
        )
    total = round(sum(float(item["qty"]) * float(item["price"]) for item in items), 2)
    common: dict[str, object] = {"name": name, "total": total, "currency": "EUR", "step": place}
    if tag in ("created", "shipped", "returned"):
        common["address"] = {
            "name": name,
            "street": f"{chance.choice(_STREETS)} {chance.randint(1, 220)}",
            "postcode": f"{chance.randrange(10_000, 99_999)}",
            "city": city,
            "country": country,
        }
    if tag in ("created", "shipped"):
        common["items"] = items
    if tag in ("paid", "declined"):
        common["payment"] = {"method": chance.choice(("card", "invoice", "transfer")), "reference": f"PAY-{order:08d}"}
    if tag in ("shipped", "returned"):
        common["parcel"] = {
            "carrier": chance.choice(("north", "post", "quick")),
            "track": f"{chance.getrandbits(60):015x}",
        }
    if tag in ("cancelled", "returned"):
        common["reason"] = chance.choice(("changed my mind", "too late", "wrong size", "payment failed"))
    return common


def _sized(document: dict[str, object], chance: random.Random) -> bytes:
    """JSON between the least and the most bytes: customers leave long notes on some, short ones are filled up."""
    wanted = BODY_BYTES_MIN + int(chance.betavariate(1.2, 4.5) * (BODY_BYTES_MAX - BODY_BYTES_MIN))
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    notes: list[str] = []
    room = wanted - len(body) - len('"notes":[],')
    while room > 0:
        note = chance.choice(_NOTES)[: max(1, room - 3)]
        notes.append(note)
        room -= len(note) + 3
    if notes:
        document["notes"] = notes
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) < BODY_BYTES_MIN:
        document["filler"] = "." * BODY_BYTES_MIN
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > BODY_BYTES_MAX:
        raise AssertionError(f"event {document['event']} has {len(body)} bytes")
    return body
