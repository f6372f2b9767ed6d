"""RocketMQ's remoting protocol as a pure core: bytes to commands and back. No socket, clock or event loop."""
