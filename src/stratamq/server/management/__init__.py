"""RabbitMQ's management HTTP API over the AMQP side of a broker: what rabbitmqadmin, Flower and monitoring ask for.

Paths and JSON are RabbitMQ's, under ``/api`` of the HTTP port. `objects` turns what the broker has into JSON, `lists`
sorts and pages, `access` says who may, the rest are handlers by family; `app` puts them together.
"""
