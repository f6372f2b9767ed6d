"""AMQP 0-9-1 as RabbitMQ speaks it: bytes to frames, methods and contents and back, and the life of a connection."""
