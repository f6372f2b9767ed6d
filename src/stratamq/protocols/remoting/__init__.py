"""The RocketMQ remoting protocol."""
