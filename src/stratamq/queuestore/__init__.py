"""The queue store: RabbitMQ's model of queues, messages and acknowledgements on disk. Starts at `queuestore.store`."""
