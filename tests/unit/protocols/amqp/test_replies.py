"""Replies: no error without a code, texts as they stand on the wire."""

from __future__ import annotations

from stratamq import errors
from stratamq.protocols.amqp.replies import CODE_OF_ERROR, REPLY_NAMES, AmqpError, error_to_reply


def below(kind: type) -> set[type]:
    return {kind} | {deeper for child in kind.__subclasses__() for deeper in below(child)}


def test_every_broker_error_has_a_code():
    for kind in below(errors.BrokerError):
        if kind.__module__ == "stratamq.errors":
            assert kind in CODE_OF_ERROR, kind
    assert set(CODE_OF_ERROR.values()) <= set(REPLY_NAMES)


def test_soft_codes_close_the_channel_and_hard_ones_the_connection():
    assert not AmqpError(404, "x").is_hard
    assert AmqpError(504, "x").is_hard
    assert AmqpError(403, "x", hard=True).is_hard


def test_the_text_fits_into_a_short_string():
    assert AmqpError(404, "no queue 'q' in vhost '/'").reply_text() == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert len(AmqpError(404, "ö" * 200).reply_text().encode()) <= 255


def test_what_nobody_foresaw_is_an_internal_error():
    assert error_to_reply(KeyError("secret")).reply_text() == "INTERNAL_ERROR - internal error"
    assert error_to_reply(errors.StoreClosed()).code == 506
    assert error_to_reply(AmqpError(406, "x")).code == 406
