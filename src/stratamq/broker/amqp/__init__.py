"""RabbitMQ's model: virtual hosts, exchanges, queues, consumers, and the sessions of connections and channels."""
